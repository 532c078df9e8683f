"""The normal form of HLO text: the module without what differs between machines.

Rules, by name; for each, a test proves that a real change still shows:

- tables: FileNames, FunctionNames, FileLocations and StackFrames are left out.
- metadata: `metadata={…}` is left out; it holds numbers of stack frames.
- fingerprint: XLA's `fingerprint_before_lhs` in the header is left out.
- computations: they are numbered and printed in the order in which they are called, from the entry
  on; `%region_0.1.clone` on one machine is `%region_0.1.clone.1` on another.
- inner names: in computations other than the entry, instructions are numbered in order, and their
  operands likewise; `param_1.198` on one machine is `param_1.196` on another.
- parameters: they come first in each computation, by number. A parameter exists from the start, at
  whatever position of the schedule it is listed.
- bitcasts: each comes before its first reader. A bitcast does nothing, at whatever position of the
  schedule it is listed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from xlapipe.dump.normal_form.module_text import (
    NAME,
    ComputationText,
    InstructionText,
    names_by_calls,
    numbered,
    read_module_text,
    renamed,
)

_CALLED = re.compile(
    r"\b((?:calls|to_apply|body|condition|select|scatter|comparator|\w+_computations?)=)"
    r"(%[\w.\-]+|\{[^{}]*\})"
)
_FINGERPRINT = re.compile(r',? ?(?:frontend_attributes=\{)?fingerprint_before_lhs="[^"]*"\}?')
_PARAMETER_NAME = re.compile(r"(?<=[(\s])[\w.\-]+: ")


def normal_hlo(text: str, *, entry_names: bool = True) -> str:
    """The normal form of a module's text, before or after optimisation.

    Args:
      entry_names: keep the names of the entry's instructions; if False, number them as in other
        computations.
    """
    header, computations = read_module_text(text)
    ordered = {name: in_order(it.instructions) for name, it in computations.items()}
    entry = next((name for name, it in computations.items() if it.is_entry), "")
    names = names_by_calls(ordered, entry, _called_in)
    lines = [_FINGERPRINT.sub("", header)]
    for name in names:
        computation = computations[name]
        keeps_names = computation.is_entry and entry_names
        lines += _normal_lines(computation, ordered[name], names, keeps_names=keeps_names)
    return "\n".join(lines) + "\n"


def _called_in(text: str) -> list[str]:
    called = _CALLED.findall(text) if _may_call(text) else ()
    return [name for _, names in called for name in NAME.findall(names)]


def _normal_lines(
    computation: ComputationText,
    instructions: Sequence[InstructionText],
    computation_names: Mapping[str, str],
    *,
    keeps_names: bool,
) -> Iterator[str]:
    signature = _PARAMETER_NAME.sub("", computation.signature)
    yield f"{computation_names[computation.name]} {signature}{{"
    names = {} if keeps_names else numbered(instructions)

    def rename_computation(match: re.Match[str]) -> str:
        return computation_names.get(match[1], match[1])

    def rename_called(match: re.Match[str]) -> str:
        return match[1] + NAME.sub(rename_computation, match[2])

    for line in instructions:
        # Called computations lose their %, so that they are not mistaken for instructions.
        text = line.text
        yield renamed(_CALLED.sub(rename_called, text) if _may_call(text) else text, names)
    yield "}"


def _may_call(text: str) -> bool:
    """Whether `_CALLED` may match, which takes ten times as long to find out."""
    return "=%" in text or "={%" in text


def _is_bitcast(line: InstructionText) -> bool:
    """Whether it is a bitcast to an array without tiles: those of TPUs keep their places."""
    return line.opcode == "bitcast" and "(" not in line.text[: line.operands_start - 1]


def in_order(
    instructions: Sequence[InstructionText],
    is_moved: Callable[[InstructionText], bool] = _is_bitcast,
) -> list[InstructionText]:
    """Parameters by number, then the rest, each moved instruction before its first reader."""

    def number(line: InstructionText) -> int:
        return int(line.text[line.operands_start :].partition(")")[0])

    parameters = (line for line in instructions if line.opcode == "parameter")
    ordered = sorted(parameters, key=number)
    added = set(ordered)
    moved = {line.name: line for line in instructions if is_moved(line) and not line.is_root}

    def add(line: InstructionText) -> None:
        if line in added:
            return
        added.add(line)
        for name in line.reads if moved else ():
            if name in moved:
                add(moved[name])
        ordered.append(line)

    for line in instructions:
        if line.name not in moved:
            add(line)
    for line in moved.values():  # those without a reader
        add(line)
    return ordered
