"""Memory and time by module of the model: scopes of the program, and classes on the call stack.

linen, equinox and `jax.named_scope` write names into an instruction's op_name. nnx writes none; the
Python frames of an instruction name the classes whose methods were called, of any library.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from rich.text import Text

from xlapipe.plans.buffers import split_value_name
from xlapipe.plans.collectives import split_scopes
from xlapipe.plans.hlo import Instruction
from xlapipe.plans.occupancy import CountedValue
from xlapipe.plans.peak import peak_of
from xlapipe.plans.wording import counted
from xlapipe.report.units import exact, microseconds
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.cost import KernelCost

_METHOD = re.compile(r"(?:.*<locals>\.)?([A-Z]\w*)\.(\w+)")
# What transforms and control flow add to an op_name: `transpose(jvp(Model))`, `while`, `body`.
_WRAPPED = re.compile(r"(?:\w+\()+(.*?)\)+")
_NOT_MODULES = frozenset({"", "while", "body", "cond", "checkpoint", "rematted_computation"})
_TRANSFORMS = "/transforms/"
_NUMBER = re.compile(r"_?\d+$")
_MOST_ROWS = 20
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module, with those inside of it; what XLA fused belongs to the module of its result.

    Attributes:
      module: a scope such as `layers_0/attention`, or a class such as `Attention`.
      peak_bytes: of values at the peak that it computes, and of arguments that it reads first.
      floor_seconds, predicted_seconds: None if the times of a step are unknown.
    """

    module: str
    peak_bytes: int
    kernels: int
    launches: int
    floor_seconds: float | None
    predicted_seconds: float | None


@dataclass(frozen=True)
class Modules:
    opened: XlaSubject

    @cached_property
    def rows(self) -> tuple[ModuleRow, ...]:
        """Every module, those with the longest time first."""
        rows = [self._row(name, [name]) for name in sorted({*self._kernels, *self._held})]
        return tuple(
            sorted(rows, key=lambda row: (-(row.predicted_seconds or 0.0), -row.peak_bytes))
        )

    def named(self, name: str) -> list[str]:
        """Modules that end with a name, whatever its case and the number of the layer."""
        wanted = _plain(name)
        return [
            row.module
            for row in self.rows
            if wanted in (_plain(row.module), _plain(row.module.rpartition("/")[2]))
        ]

    def lines(self, name: str) -> Iterator[Text]:
        """What `xlapipe show DIR NAME` prints of all modules of a name."""
        names = self.named(name)
        yield Text(f"{name}: {counted(len(names), 'module')}", style="bold")
        yield Text(f"  {_text(self._row(name, names))}")
        if len(names) > 1:
            rows = [row for row in self.rows if row.module in names]
            yield from (Text(f"  {row.module}: {_text(row)}") for row in rows[:_MOST_ROWS])
            if len(rows) > _MOST_ROWS:
                yield Text(f"  … and {len(rows) - _MOST_ROWS} more (plan.table('modules') has all)")

    def _row(self, name: str, members: Sequence[str]) -> ModuleRow:
        """A row of several modules; what is in two of them counts once."""
        kernels = {it.name: it for module in members for it in self._kernels.get(module, ())}
        values = {id(it): it for module in members for it in self._held.get(module, ())}
        floors = [kernel.floor_seconds for kernel in kernels.values()]
        known = None not in floors and self.opened.study.cost is not None
        prediction = self.opened.prediction
        return ModuleRow(
            name,
            sum(held.counted_bytes for held in values.values()),
            len(kernels),
            sum(kernel.launches for kernel in kernels.values()),
            sum(filter(None, floors)) if known else None,
            sum(self._seconds.get(name, 0.0) for name in kernels) if prediction else None,
        )

    @cached_property
    def _kernels(self) -> Mapping[str, list[KernelCost]]:
        cost = self.opened.study.cost
        return self._by_module({kernel.name: kernel for kernel in cost.kernels} if cost else {})

    @cached_property
    def _held(self) -> Mapping[str, list[CountedValue]]:
        contents = peak_of(self.opened.program).contents
        return self._by_module({held.value.name: held for held in contents})

    def _by_module(self, items: Mapping[str, _Item]) -> dict[str, list[_Item]]:
        """Items of values or instructions, in the lists of their modules."""
        lists: dict[str, list[_Item]] = {}
        for value, item in items.items():
            traced = self.opened.plan.nearest_traced(split_value_name(value)[0])
            for module in self._names.get(traced or "", ()):
                lists.setdefault(module, []).append(item)
        return lists

    @cached_property
    def _names(self) -> Mapping[str, frozenset[str]]:
        instructions = self.opened.plan.instructions.values()
        return {it.name: frozenset(self._modules(it)) for it in instructions if it.source}

    def _modules(self, instruction: Instruction) -> Iterator[str]:
        for op_name in split_scopes(instruction.op_name):
            scopes = list(scopes_of(op_name))
            yield from ("/".join(scopes[:depth]) for depth in range(1, len(scopes) + 1))
        module = self.opened.plan.module
        for frame in module.chains.chain(instruction.name) if module is not None else ():
            match = _METHOD.fullmatch(frame.function)
            is_call = match is not None and (frame.is_own_code or match[2] == "__call__")
            if match is not None and is_call and _TRANSFORMS not in frame.file:
                yield match[1]

    @cached_property
    def _seconds(self) -> Mapping[str, float]:
        prediction = self.opened.prediction
        return {item.name: item.seconds for item in prediction.kernels} if prediction else {}


def scopes_of(op_name: str) -> Iterable[str]:
    """The names of an op_name without the primitive, transforms and jitted functions.

    >>> list(scopes_of("jit(step)/transpose(jvp(Model))/layers_0/jit(relu)/max"))
    ['Model', 'layers_0']
    """
    for part in op_name.split("/")[:-1]:
        match = _WRAPPED.fullmatch(part)
        name = part if match is None else match[1]
        if not part.startswith(("jit(", "pjit")) and name not in _NOT_MODULES and "->" not in name:
            yield name


def _plain(name: str) -> str:
    return _NUMBER.sub("", name).lower()


def _text(row: ModuleRow) -> str:
    text = f"{exact(row.peak_bytes)} at the peak, {counted(row.kernels, 'kernel')}"
    if row.predicted_seconds is not None:
        return f"{text}, predicted {microseconds(row.predicted_seconds)}"
    if row.floor_seconds is not None:
        return f"{text}, at least {microseconds(row.floor_seconds)}"
    return text
