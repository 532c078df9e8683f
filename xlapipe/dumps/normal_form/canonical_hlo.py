"""The canonical form of a normal form: what two compiles of one program on two machines share.

The normal form is stored in goldens and shows XLA's own names. XLA gives numbers to names, and an
order to instructions that nothing else orders, by hash tables; both differ between machines where
the plan is the same. The canonical form is computed when two normal forms are compared.

Rules, by name; each leaves a real change visible:

- outputs: those of a fusion with several are ordered by what they compute; see
  `xlapipe.dumps.normal_form.output_order`.
- fused order: instructions of a computation that is not scheduled, such as a fusion's, are ordered
  by the operands of its root. The order of operands is kept.
- values without a thunk: constants, bitcasts, tuples and their elements come before their first
  reader. The order of all other instructions of a scheduled computation is kept.
- neighbours: consecutive instructions of a schedule that read nothing, such as the broadcasts that
  a loop starts with, are ordered by what they compute, and so are their kernels.
- numbers: names of the entry keep their words, and are numbered in that order. The names of
  kernels and the ids of asynchronous pairs are numbered in the order of the thunks.
- cuDNN's configuration: fields with their default value are left out, and numbers are written in
  one way. XLA writes a configuration again where it has asked the device.
- values at one offset: the values of an allocation are ordered by offset, size and name.
- allocations: consecutive ones of the same size and kind are ordered by their values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from xlapipe.dumps.normal_form.hlo import in_order
from xlapipe.dumps.normal_form.output_order import (
    Computation,
    Orders,
    output_orders,
    with_ordered_outputs,
)
from xlapipe.dumps.normal_form.plain_config import with_plain_config

_HEADER = re.compile(r"(?P<name>[\w.\-]+) (?P<signature>\(.*)\{$")
_DEFINED = re.compile(r"  (?:ROOT )?%(?P<name>[\w.\-]+) = (?P<rest>.*)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(computation_\d+)\b")
_SCHEDULED_BY = re.compile(
    r"\b(?:body|condition|branch_computations|true_computation|false_computation)="
    r"(\{[^{}]*\}|computation_\d+)"
)
_CALLING = ("call", "async-start")
_WITHOUT_THUNK = ("constant", "bitcast", "get-tuple-element", "tuple", "after-all")
_NUMBERS = re.compile(r"(\.\d+)+$")
_CONSTANT_NUMBERS = re.compile(r"([._]\d+)+$")
_CUDNN_CALL = 'custom_call_target="__cudnn$fmha'


@dataclass(frozen=True)
class CanonicalHlo:
    """The canonical form of a module.

    Attributes:
      names: canonical names of the entry's instructions, by name.
      reading_nothing: the names that kernels of instructions without operands have.
      orders: of the outputs of fusions, by name in the text that is not canonical.
    """

    text: str
    names: Mapping[str, str] = field(default_factory=dict)
    reading_nothing: frozenset[str] = frozenset()
    orders: Orders = field(default_factory=dict)


def canonical_hlo(text: str) -> CanonicalHlo:
    """The canonical form of a module in normal form; other text is returned as it is."""
    header, computations = _parse(text)
    if "ENTRY" not in computations:
        return CanonicalHlo(text)
    orders = output_orders(computations)
    computations = with_ordered_outputs(computations, orders)
    scheduled = _scheduled(computations)
    fused = {
        name: _by_operands(it.lines) for name, it in computations.items() if name not in scheduled
    }
    ordered = fused | {
        name: _neighbours(_in_schedule(computations[name].lines), fused) for name in scheduled
    }
    new_names = _computation_names(ordered)
    entry_names = _entry_names(ordered["ENTRY"])
    lines = [header]
    for name, new_name in new_names.items():
        instructions = ordered[name]
        names = entry_names if name == "ENTRY" else _numbered(instructions)
        lines.append(f"{new_name} {computations[name].signature}{{")
        lines += (_renamed(line, names, new_names) for line in instructions)
        lines.append("}")
    reading_nothing = frozenset(
        re.sub(r"[.\-]", "_", match["name"])
        for line in ordered["ENTRY"]
        if (match := _DEFINED.match(line)) and _reads_nothing(line)
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


def _parse(text: str) -> tuple[str, dict[str, Computation]]:
    header, name, signature = "", "", ""
    computations: dict[str, Computation] = {}
    lines: list[str] = []
    for line in text.splitlines():
        match = _HEADER.match(line)
        if line.startswith("HloModule"):
            header = line
        elif match is not None and not line.startswith(" "):
            name, signature, lines = match["name"], match["signature"], []
        elif line == "}":
            computations[name] = Computation(name, signature, tuple(lines))
        else:
            lines.append(line)
    return header, computations


def _scheduled(computations: Mapping[str, Computation]) -> set[str]:
    """Names of the computations whose order of instructions is an order of thunks."""
    scheduled, pending = set(), ["ENTRY"]
    while pending:
        name = pending.pop()
        if name in scheduled or name not in computations:
            continue
        scheduled.add(name)
        for line in computations[name].lines:
            if _opcode(line) in _CALLING:
                pending += _CALLED.findall(line)
            for called in _SCHEDULED_BY.findall(line):
                pending += _CALLED.findall(called)
    return scheduled


def _opcode(line: str) -> str:
    match = _DEFINED.match(line)
    if match is None:
        return ""
    depth = 0
    for position, character in enumerate(match["rest"]):
        depth += (character in "({") - (character in ")}")
        if character == " " and depth == 0:
            return match["rest"][position + 1 :].partition("(")[0]
    return ""


def _by_operands(lines: tuple[str, ...]) -> list[str]:
    """Parameters by number, then each instruction after its operands, from the root's on."""
    by_name = {match["name"]: line for line in lines if (match := _DEFINED.match(line))}
    parameters = [line for line in lines if _opcode(line) == "parameter"]
    ordered = dict.fromkeys(parameters)
    roots = [line for line in lines if line.startswith("  ROOT ")]
    pending = [*reversed(lines), *roots]  # those that the root does not need come last
    while pending:
        line = pending[-1]
        missing = [
            by_name[name]
            for name in _NAME.findall(line)[1:]
            if name in by_name and by_name[name] not in ordered
        ]
        if line in ordered or not missing:
            ordered[pending.pop()] = None
        else:
            pending += reversed(missing)
    return list(ordered)


def _in_schedule(lines: tuple[str, ...]) -> list[str]:
    return in_order(list(lines), lambda line: _opcode(line) in _WITHOUT_THUNK)


def _neighbours(lines: list[str], fused: Mapping[str, list[str]]) -> list[str]:
    """Consecutive instructions that read nothing, ordered by what they compute."""

    def computed(line: str) -> tuple[str, ...]:
        called = [text for name in _CALLED.findall(line) for text in fused.get(name, ())]
        own = _CALLED.sub("", line.partition(" = ")[2])
        return own, *(_renamed(text, _numbered(called), {}) for text in called)

    ordered: list[str] = []
    for reads_nothing, run in groupby(lines, _reads_nothing):
        neighbours = list(run)
        ordered += sorted(neighbours, key=computed) if reads_nothing else neighbours
    return ordered


def _reads_nothing(line: str) -> bool:
    return _opcode(line) == "fusion" and " fusion()," in line and not line.startswith("  ROOT")


def _computation_names(ordered: Mapping[str, list[str]]) -> dict[str, str]:
    """New names in the order of the calls, from the entry on."""
    names: dict[str, str] = {}
    pending = ["ENTRY"]
    while pending:
        name = pending.pop(0)
        if name in names or name not in ordered:
            continue
        names[name] = f"computation_{len(names)}" if names else name
        for line in ordered[name]:
            pending += _CALLED.findall(line)
    return names


def _entry_names(lines: list[str]) -> dict[str, str]:
    numbering = Numbering()
    for line in lines:
        match = _DEFINED.match(line)
        if match is not None:
            pattern = _CONSTANT_NUMBERS if _opcode(line) == "constant" else _NUMBERS
            numbering.numbered(match["name"], pattern.sub("", match["name"]))
    return numbering.names


def _numbered(lines: list[str]) -> dict[str, str]:
    matches = (_DEFINED.match(line) for line in lines)
    return {match["name"]: str(number) for number, match in enumerate(matches) if match}


def _renamed(line: str, names: Mapping[str, str], computations: Mapping[str, str]) -> str:
    if _CUDNN_CALL in line:
        line = with_plain_config(line)
    line = _CALLED.sub(lambda match: computations.get(match[1], match[1]), line)
    return _NAME.sub(lambda match: f"%{names.get(match[1], match[1])}", line)
