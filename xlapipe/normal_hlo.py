"""The normal form of optimised HLO text: what is left when machines' differences are taken out.

Rules, by name; a test shows for each that a real change still shows:

- tables: FileNames, FunctionNames, FileLocations and StackFrames are left out.
- metadata: `metadata={…}` is left out; it holds numbers of stack frames.
- fingerprint: XLA's `fingerprint_before_lhs` in the header is left out.
- inner names: in computations other than the entry, instructions are numbered in order, since
  `param_1.198` here is `param_1.196` there. Operands are renamed along.
- parameters: in each computation they come first, by number, since a parameter is there from
  the start wherever the schedule lists it.
"""

import re
from collections.abc import Iterator

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_HEADER = re.compile(r"(?:ENTRY )?%\S+ \(.*\{$")
_DEFINED = re.compile(r"\s+(?:ROOT )?%(\S+) = ")
_PARAMETER = re.compile(r" parameter\((\d+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
_FINGERPRINT = re.compile(r',? ?(?:frontend_attributes=\{)?fingerprint_before_lhs="[^"]*"\}?')


def normal_hlo(text: str) -> str:
    """`after_optimizations.txt` in normal form."""
    return "\n".join(_computations(_without_tables(text.splitlines()))) + "\n"


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


def _computations(lines: Iterator[str]) -> Iterator[str]:
    body: list[str] = []
    for line in lines:
        if body:
            body.append(_without_metadata(line))
            if line == "}":
                yield from _in_order(body)
                body = []
        elif line.startswith("HloModule"):
            yield _FINGERPRINT.sub("", line)
        elif _HEADER.match(line) is not None:
            body = [line]
        elif line:
            yield _without_metadata(line)


def _in_order(body: list[str]) -> Iterator[str]:
    """A computation with parameters first and, but for the entry, instructions numbered."""
    header, *instructions = body
    parameters = {line: number[1] for line in instructions if (number := _PARAMETER.search(line))}
    instructions.sort(key=lambda line: int(parameters.get(line, len(instructions))))
    if header.startswith("ENTRY"):
        yield header
        yield from instructions
        return
    numbers: dict[str, str] = {}
    for line in instructions:
        if (defined := _DEFINED.match(line)) is not None:
            numbers[defined[1]] = f"%{len(numbers)}"
    # Names in the header's signature are those of the parameters; their shapes stay.
    yield re.sub(r"([(,] ?)[\w.\-]+: ", r"\1", header)
    for line in instructions:
        yield _NAME.sub(lambda found: numbers.get(found[1], found[0]), line)


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
