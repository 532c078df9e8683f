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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_HEADER = re.compile(r"(?P<entry>ENTRY )?%(?P<name>\S+) (?P<signature>\(.*)\{$")
_DEFINED = re.compile(r"  (?P<root>ROOT )?%(?P<name>[\w.\-]+) = ")
_PARAMETER = re.compile(r" parameter\((\d+)\)")
_BITCAST = re.compile(r"^[^(]*[\]})] bitcast\(")
_CALLED = re.compile(
    r"\b((?:calls|to_apply|body|condition|select|scatter|comparator|\w+_computations?)=)"
    r"(%[\w.\-]+|\{[^{}]*\})"
)
_NAME = re.compile(r"%([\w.\-]+)")
# Without inner braces, as nearly all are.
_METADATA = re.compile(r', metadata=\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}')
_FINGERPRINT = re.compile(r',? ?(?:frontend_attributes=\{)?fingerprint_before_lhs="[^"]*"\}?')
_PARAMETER_NAME = re.compile(r"(?<=[(\s])[\w.\-]+: ")


@dataclass(frozen=True)
class _ComputationText:
    name: str
    is_entry: bool
    signature: str
    lines: list[str]

    @cached_property
    def lines_in_order(self) -> list[str]:
        return in_order(self.lines)


def normal_hlo(text: str, *, entry_names: bool = True) -> str:
    """The normal form of a module's text, before or after optimisation.

    Args:
      entry_names: keep the names of the entry's instructions; if False, number them as in other
        computations.
    """
    header, computations = _parse(_without_tables(text.splitlines()))
    names = _new_names(computations)
    lines = [_FINGERPRINT.sub("", header)]
    for name in names:
        lines += _normal_lines(computations[name], names, entry_names)
    return "\n".join(lines) + "\n"


def _without_tables(lines: list[str]) -> Iterator[str]:
    in_table = False
    for line in lines:
        if line in _TABLES:
            in_table = True
        elif in_table and (not line or line[0].isdigit()):
            continue
        else:
            in_table = False
            yield line


def _parse(lines: Iterator[str]) -> tuple[str, dict[str, _ComputationText]]:
    header = ""
    computations: dict[str, _ComputationText] = {}
    current: _ComputationText | None = None
    for line in lines:
        if line.startswith("  "):
            if current is not None:
                current.lines.append(_without_metadata(line))
        elif line.startswith("HloModule"):
            header = line
        elif (match := _HEADER.match(line)) is not None:
            current = _ComputationText(match["name"], bool(match["entry"]), match["signature"], [])
            computations[current.name] = current
    return header, computations


def _new_names(computations: dict[str, _ComputationText]) -> dict[str, str]:
    """New names of the computations: the entry first, the others in the order of the calls."""
    names: dict[str, str] = {}
    pending = deque(item.name for item in computations.values() if item.is_entry)
    while pending:
        name = pending.popleft()
        if name in names or name not in computations:
            continue
        names[name] = "entry" if computations[name].is_entry else f"computation_{len(names)}"
        for line in computations[name].lines_in_order:
            if _may_call(line):
                for _, called in _CALLED.findall(line):
                    pending += _NAME.findall(called)
    return names


def _normal_lines(
    computation: _ComputationText, computation_names: dict[str, str], entry_names: bool
) -> Iterator[str]:
    lines = computation.lines_in_order
    name = "ENTRY" if computation.is_entry else computation_names[computation.name]
    yield f"{name} {_PARAMETER_NAME.sub('', computation.signature)}{{"
    instruction_names: dict[str, str] = {}
    if not (computation.is_entry and entry_names):
        instruction_names = {
            match["name"]: str(number)
            for number, line in enumerate(lines)
            if (match := _DEFINED.match(line)) is not None
        }

    def rename_instruction(match: re.Match[str]) -> str:
        return f"%{instruction_names.get(match[1], match[1])}"

    def rename_computation(match: re.Match[str]) -> str:
        return computation_names.get(match[1], match[1])

    def rename_called(match: re.Match[str]) -> str:
        return match[1] + _NAME.sub(rename_computation, match[2])

    for line in lines:
        # Called computations lose their %, so that they are not mistaken for instructions.
        called = _CALLED.sub(rename_called, line) if _may_call(line) else line
        yield _NAME.sub(rename_instruction, called) if instruction_names else called
    yield "}"


def _may_call(line: str) -> bool:
    """Whether `_CALLED` may match, which takes ten times as long to find out."""
    return "=%" in line or "={" in line


def _is_bitcast(line: str) -> bool:
    return " bitcast(" in line and _BITCAST.match(line) is not None


def in_order(lines: list[str], is_moved: Callable[[str], bool] = _is_bitcast) -> list[str]:
    """Parameters by number, then the rest, each moved instruction before its first reader.

    Args:
      is_moved: whether the instruction on a line has no place in the schedule of its own.
    """
    parameters = {
        int(match[1]): line
        for line in lines
        if " parameter(" in line and (match := _PARAMETER.search(line)) is not None
    }
    ordered = [parameters[number] for number in sorted(parameters)]
    added = set(ordered)
    bitcasts = {
        match["name"]: line
        for line in lines
        if is_moved(line) and (match := _DEFINED.match(line)) is not None and not match["root"]
    }

    def add(line: str) -> None:
        if line in added:
            return
        added.add(line)
        if bitcasts:
            for name in _NAME.findall(line):
                if name in bitcasts:
                    add(bitcasts[name])
        ordered.append(line)

    bitcast_lines = set(bitcasts.values())
    for line in lines:
        if line not in bitcast_lines:
            add(line)
    for line in bitcasts.values():  # those without a reader
        add(line)
    return ordered


def _without_metadata(line: str) -> str:
    """Removes `, metadata={…}`; braces inside its strings are ignored."""
    start = line.find(", metadata={")
    if start < 0:
        return line
    if (match := _METADATA.match(line, start)) is not None:
        return line[:start] + line[match.end() :]
    depth, quoted, position = 0, False, start + len(", metadata=")
    while position < len(line):
        character = line[position]
        if quoted and character == "\\":
            position += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                break
        position += 1
    return line[:start] + line[position + 1 :]
