"""The normal form of HLO text: what is left when machines' differences are taken out.

Rules, by name; a test shows for each that a real change still shows:

- tables: FileNames, FunctionNames, FileLocations and StackFrames are left out.
- metadata: `metadata={…}` is left out; it holds numbers of stack frames.
- fingerprint: XLA's `fingerprint_before_lhs` in the header is left out.
- computations: they are numbered in the order in which the entry comes to call them, and stand in
  that order; `%region_0.1.clone` here is `%region_0.1.clone.1` there.
- inner names: in computations other than the entry, instructions are numbered in order, since
  `param_1.198` here is `param_1.196` there. Operands are renamed along.
- parameters: in each computation they come first, by number, since a parameter is there from
  the start wherever the schedule lists it.
- bitcasts: each stands before its first reader, since it costs nothing wherever the schedule
  lists it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
_FINGERPRINT = re.compile(r',? ?(?:frontend_attributes=\{)?fingerprint_before_lhs="[^"]*"\}?')
_PARAMETER_NAME = re.compile(r"(?<=[(\s])[\w.\-]+: ")


@dataclass(frozen=True)
class _Computation:
    name: str
    is_entry: bool
    signature: str
    lines: list[str]


def normal_hlo(text: str, *, entry_names: bool = True) -> str:
    """The text of a module, before or after optimisation, in normal form.

    Args:
      entry_names: keep the entry's names; without them, they are numbers as everywhere else.
    """
    header, computations = _parse(_without_tables(text.splitlines()))
    numbers = _called_in_order(computations)
    lines = [_FINGERPRINT.sub("", header)]
    for name in numbers:
        lines += _normal(computations[name], numbers, entry_names)
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


def _parse(lines: Iterator[str]) -> tuple[str, dict[str, _Computation]]:
    header = ""
    computations: dict[str, _Computation] = {}
    current: _Computation | None = None
    for line in lines:
        if line.startswith("HloModule"):
            header = line
        elif (found := _HEADER.match(line)) is not None:
            current = _Computation(found["name"], bool(found["entry"]), found["signature"], [])
            computations[current.name] = current
        elif current is not None and line.startswith("  "):
            current.lines.append(_without_metadata(line))
    return header, computations


def _called_in_order(computations: dict[str, _Computation]) -> dict[str, str]:
    """New names of the computations, the entry first, callees behind who first calls them."""
    numbers: dict[str, str] = {}
    pending = [each.name for each in computations.values() if each.is_entry]
    while pending:
        name = pending.pop(0)
        if name in numbers or name not in computations:
            continue
        numbers[name] = "entry" if computations[name].is_entry else f"computation_{len(numbers)}"
        for line in _in_order(computations[name].lines):
            for _, called in _CALLED.findall(line):
                pending += _NAME.findall(called)
    return numbers


def _normal(computation: _Computation, numbers: dict[str, str], entry_names: bool) -> Iterator[str]:
    lines = _in_order(computation.lines)
    name = "ENTRY" if computation.is_entry else numbers[computation.name]
    yield f"{name} {_PARAMETER_NAME.sub('', computation.signature)}{{"
    names: dict[str, str] = {}
    if not (computation.is_entry and entry_names):
        names = {
            found["name"]: str(number)
            for number, line in enumerate(lines)
            if (found := _DEFINED.match(line)) is not None
        }

    def instruction_name(found: re.Match[str]) -> str:
        return f"%{names.get(found[1], found[1])}"

    def computation_names(found: re.Match[str]) -> str:
        return found[1] + _NAME.sub(lambda name: numbers.get(name[1], name[1]), found[2])

    for line in lines:
        # Called computations lose their %, so that they are no longer taken for instructions.
        yield _NAME.sub(instruction_name, _CALLED.sub(computation_names, line))
    yield "}"


def _in_order(lines: list[str]) -> list[str]:
    """Parameters by number, then the rest, each bitcast before its first reader."""
    parameters = {int(found[1]): line for line in lines if (found := _PARAMETER.search(line))}
    ordered = [parameters[number] for number in sorted(parameters)]
    taken = set(ordered)
    bitcasts = {
        found["name"]: line
        for line in lines
        if _BITCAST.match(line)
        and (found := _DEFINED.match(line)) is not None
        and not found["root"]
    }

    def take(line: str) -> None:
        if line in taken:
            return
        taken.add(line)
        for name in _NAME.findall(line):
            if name in bitcasts:
                take(bitcasts[name])
        ordered.append(line)

    moved = set(bitcasts.values())
    for line in lines:
        if line not in moved:
            take(line)
    for line in bitcasts.values():  # those that nobody reads
        take(line)
    return ordered


def _without_metadata(line: str) -> str:
    """Cuts `, metadata={…}`; braces inside its strings do not count."""
    start = line.find(", metadata={")
    if start < 0:
        return line
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
