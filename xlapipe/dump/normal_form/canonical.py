"""The canonical form of a normal form: what two compiles of one program on two machines share.

The normal form is stored in goldens and shows XLA's own names. XLA gives numbers to names, and an
order to instructions that nothing else orders, by hash tables; both differ between machines where
the plan is the same. The canonical form is computed when two normal forms are compared.

Rules, by name; each leaves a real change visible:

- outputs: those of a fusion with several are ordered by what they compute; see
  `xlapipe.dump.normal_form.output_order`.
- fused order: instructions of a computation that is not scheduled, such as a fusion's, are ordered
  by the operands of its root. The order of operands is kept.
- values without a thunk: constants, bitcasts, tuples and their elements come before their first
  reader. The order of all other instructions of a scheduled computation is kept.
- neighbours: consecutive instructions of a schedule that read nothing, such as the broadcasts that
  a loop starts with, are ordered by what they compute, and so are their kernels.
- numbers: names of the entry keep their words, and are numbered in that order, wherever in a name
  XLA's numbers are (`fusion.12.clone.3`). The names of kernels and the ids of asynchronous pairs
  are numbered in the order of the thunks.
- digits: instructions are ordered by the first digits of constants, whose last ones are the CPU's;
  see `xlapipe.dump.normal_form.constant_values`.
- cuDNN's configuration: fields with their default value are left out, and numbers are written in
  one way. XLA writes a configuration again where it has asked the device.
- values at one offset: the values of an allocation are ordered by offset, size and name.
- allocations: consecutive ones of the same size and kind are ordered by their values.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from xlapipe.dump.normal_form.constant_values import rounded_constants
from xlapipe.dump.normal_form.hlo import in_order
from xlapipe.dump.normal_form.module_text import (
    COMPUTATION,
    ComputationText,
    InstructionText,
    names_by_calls,
    numbered,
    read_module_text,
    renamed,
)
from xlapipe.dump.normal_form.output_order import (
    Orders,
    output_orders,
    with_ordered_outputs,
    with_ordered_values,
)
from xlapipe.plans.opcodes import RUNS_ONCE

_SCHEDULED_BY = re.compile(
    r"\b(?:body|condition|branch_computations|true_computation|false_computation)="
    r"(\{[^{}]*\}|computation_\d+)"
)
_WITHOUT_THUNK = ("constant", "bitcast", "get-tuple-element", "tuple", "after-all")
_NUMBERS = re.compile(r"\.\d+(?=[.\-]|$)")
_CONSTANT_NUMBERS = re.compile(r"[._]\d+(?=[._]|$)")
_CUDNN_CALL = 'custom_call_target="__cudnn$fmha'


@dataclass(frozen=True)
class CanonicalHlo:
    """The canonical form of a module.

    Attributes:
      names: canonical names of the entry's instructions, by name.
      reading_nothing: the names that kernels of instructions without operands have.
      orders: orders of the outputs of fusions, by name in the text that is not canonical.
    """

    text: str
    names: Mapping[str, str] = field(default_factory=dict)
    reading_nothing: frozenset[str] = frozenset()
    orders: Orders = field(default_factory=dict)


def canonical_hlo(text: str) -> CanonicalHlo:
    """The canonical form of a module in normal form; other text is returned as it is."""
    header, computations = read_module_text(text)
    if "ENTRY" not in computations:
        return CanonicalHlo(text)
    orders = output_orders(computations)
    computations = with_ordered_outputs(computations, orders)
    scheduled = _scheduled(computations)
    fused = {
        name: _by_operands(it.instructions)
        for name, it in computations.items()
        if name not in scheduled
    }
    ordered = fused | {
        name: _neighbours(
            in_order(computations[name].instructions, lambda it: it.opcode in _WITHOUT_THUNK), fused
        )
        for name in scheduled
    }
    new_names = names_by_calls(ordered, "ENTRY", COMPUTATION.findall)
    entry_names = _entry_names(ordered["ENTRY"])
    lines = [header]
    for name, new_name in new_names.items():
        names = entry_names if name == "ENTRY" else numbered(ordered[name])
        lines.append(f"{new_name} {computations[name].signature}{{")
        lines += (_renamed(line.text, names, new_names) for line in ordered[name])
        lines.append("}")
    reading_nothing = frozenset(
        re.sub(r"[.\-]", "_", line.name) for line in ordered["ENTRY"] if _reads_nothing(line)
    )
    return CanonicalHlo("\n".join(lines) + "\n", entry_names, reading_nothing, orders)


class Numbering:
    """Gives each name a number among those with the same words, in the order of first use."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def numbered(self, name: str, words: str) -> str:
        if name not in self.names:
            number = self._counts.get(words, 0)
            self._counts[words] = number + 1
            self.names[name] = f"{words}.{number}"
        return self.names[name]


def _scheduled(computations: Mapping[str, ComputationText]) -> set[str]:
    """Names of the computations whose order of instructions is an order of thunks."""
    scheduled, pending = set(), ["ENTRY"]
    while pending:
        name = pending.pop()
        if name in scheduled or name not in computations:
            continue
        scheduled.add(name)
        for line in computations[name].instructions:
            if line.opcode in RUNS_ONCE:
                pending += COMPUTATION.findall(line.text)
            for called in _SCHEDULED_BY.findall(line.text):
                pending += COMPUTATION.findall(called)
    return scheduled


def _by_operands(instructions: Sequence[InstructionText]) -> list[InstructionText]:
    """Parameters by number, then each instruction after its operands, from the root's on."""
    by_name = {line.name: line for line in instructions}
    ordered = dict.fromkeys(line for line in instructions if line.opcode == "parameter")
    roots = [line for line in instructions if line.is_root]
    pending = [*reversed(instructions), *roots]  # those that the root does not need come last
    while pending:
        line = pending[-1]
        missing = [
            by_name[name] for name in line.reads if name in by_name and by_name[name] not in ordered
        ]
        if line in ordered or not missing:
            ordered[pending.pop()] = None
        else:
            pending += reversed(missing)
    return list(ordered)


def _neighbours(
    lines: list[InstructionText], fused: Mapping[str, list[InstructionText]]
) -> list[InstructionText]:
    """Consecutive instructions that read nothing, ordered by what they compute."""

    def computed(line: InstructionText) -> tuple[str, ...]:
        called = [it for name in COMPUTATION.findall(line.text) for it in fused.get(name, ())]
        definition = COMPUTATION.sub("", line.definition)
        texts = (rounded_constants(it.text) for it in called)
        return definition, *(_renamed(text, numbered(called), {}) for text in texts)

    ordered: list[InstructionText] = []
    for reads_nothing, run in groupby(lines, _reads_nothing):
        neighbours = list(run)
        ordered += sorted(neighbours, key=computed) if reads_nothing else neighbours
    return ordered


def _reads_nothing(line: InstructionText) -> bool:
    return line.opcode == "fusion" and " fusion()," in line.text and not line.is_root


def _entry_names(lines: list[InstructionText]) -> dict[str, str]:
    numbering = Numbering()
    for line in lines:
        pattern = _CONSTANT_NUMBERS if line.opcode == "constant" else _NUMBERS
        numbering.numbered(line.name, pattern.sub("", line.name))
    return numbering.names


def _renamed(text: str, names: Mapping[str, str], computations: Mapping[str, str]) -> str:
    if _CUDNN_CALL in text:
        text = with_plain_config(text)
    text = COMPUTATION.sub(lambda match: computations.get(match[1], match[1]), text)
    return renamed(text, names)


_CONFIG = "backend_config="


def with_plain_config(line: str) -> str:
    """The line of an instruction, with its backend config in one spelling."""
    start = line.find(_CONFIG) + len(_CONFIG)
    try:
        config, end = json.JSONDecoder().raw_decode(line, start)
    except ValueError:
        return line
    return line[:start] + json.dumps(_without_defaults(config), sort_keys=True) + line[end:]


def _without_defaults(value: Any) -> Any:
    """The value without fields that are false, zero, empty or invalid; numbers as text."""
    if isinstance(value, dict):
        fields = {name: _without_defaults(item) for name, item in value.items()}
        return {name: item for name, item in fields.items() if not _is_default(item)}
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_default(value: Any) -> bool:
    return value in ("False", "0", "", [], {}) or str(value).endswith("_INVALID")


_TOKEN = re.compile(r"[\w.\-]+")
_KERNEL_NUMBERS = re.compile(r"_\d+(?=_|$)")
# Names of a loop's instructions, of which the normal form leaves out only numbers at the end that
# follow a dot.
_INNER_NUMBERS = re.compile(r"(?<=[a-z_])(?:\.\d+)+(?=[.\-][a-z])")
_INNER_CONSTANT = re.compile(r"constant(?:[._](?:\d+|clone))+")
_KERNEL = re.compile(r"^( *kCustomKernel )(\S+)")
_ASYNC_ID = re.compile(r"\basync_id=(\d+)")
_FUSION_READING_NOTHING = re.compile(r"[\w.\-]+: \w+ \S.* \(\)(?: \{|$)")
_VALUE = re.compile(r"  @([\d,]+) ([\d,]+) B ")
_ALLOCATION = re.compile(r"\d+: (.*)")


def canonical_plan(text: str, module: CanonicalHlo) -> str:
    """The canonical form of a plan's normal form."""
    sections = re.split(r"(?m)^(?=\[\w+\]$)", text)
    return "".join(_canonical_section(section, module) for section in sections if section)


def _canonical_section(section: str, module: CanonicalHlo) -> str:
    title, *lines = section.splitlines()
    names = module.names
    if title in ("[allocations]", "[fusions]"):
        lines = list(with_ordered_values(lines, module.orders))
    if title == "[fusions]":
        lines = list(_sorted_runs(lines, _FUSION_READING_NOTHING))
    if title == "[thunks]":
        lines = list(_thunk_lines(lines, module.reading_nothing))
    elif title in ("[allocations]", "[gemms]", "[fusions]", "[collectives]"):

        def renamed(match: re.Match[str]) -> str:
            name = names.get(match[0])
            if name is None and _INNER_CONSTANT.fullmatch(match[0]):
                return "constant"
            return name or _INNER_NUMBERS.sub("", match[0])

        lines = [_TOKEN.sub(renamed, line) for line in lines]
    if title == "[allocations]":
        lines = list(_ordered_allocations(lines))
    return "\n".join([title, *lines]) + "\n"


def _sorted_runs(lines: list[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Sorts consecutive lines that match, by what follows their names."""
    for matches, run in groupby(lines, lambda line: pattern.match(line) is not None):
        neighbours = list(run)
        yield from (
            sorted(neighbours, key=lambda line: line.partition(":")[2]) if matches else neighbours
        )


def _ordered_allocations(lines: list[str]) -> Iterator[str]:
    """Values by their places, then consecutive allocations of one size and kind by their values.

    The numbers of the allocations stay in order.
    """
    blocks: list[list[str]] = []
    for line in lines:
        if _VALUE.match(line) and blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    blocks = [[head, *sorted(values, key=_place)] for head, *values in blocks]

    def size_and_kind(block: list[str]) -> str | None:
        match = _ALLOCATION.match(block[0])
        return match[1] if match is not None else None

    for is_allocation, run in groupby(blocks, size_and_kind):
        neighbours = list(run)
        numbers = [block[0].partition(":")[0] for block in neighbours]
        if is_allocation is not None:
            neighbours.sort(key=lambda block: block[1:])
        for number, (head, *values) in zip(numbers, neighbours, strict=True):
            yield f"{number}:{head.partition(':')[2]}" if is_allocation is not None else head
            yield from values


def _place(line: str) -> tuple[int, int, str]:
    match = _VALUE.match(line)
    assert match is not None
    offset, size = (int(number.replace(",", "")) for number in match.groups())
    return offset, size, line


def _thunk_lines(lines: list[str], reading_nothing: frozenset[str]) -> Iterator[str]:
    names = "|".join(map(re.escape, sorted(reading_nothing))) or "(?!)"
    pattern = re.compile(rf" *kCustomKernel (?:{names}) ")
    lines = list(_sorted_runs(lines, pattern))
    kernels = Numbering()
    ids = Numbering()

    def kernel(match: re.Match[str]) -> str:
        return match[1] + kernels.numbered(match[2], _KERNEL_NUMBERS.sub("", match[2]))

    def async_id(match: re.Match[str]) -> str:
        return f"async_id={ids.numbered(match[1], 'pair')}"

    for line in lines:
        yield _ASYNC_ID.sub(async_id, _KERNEL.sub(kernel, line))
