"""Parse brackets, quoted strings and attributes in a line of HLO text."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# An unterminated string matches up to the end; otherwise each of its quotes would be tried again.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}()\[\]]')
_FLAT = re.compile(r'\{[^{}"]*(?:"(?:[^"\\]|\\.)*"[^{}"]*)*\}')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ATTRIBUTE = re.compile(r", ([A-Za-z_][\w\-]*)=")
_PLAIN = re.compile(r'[^,{}\[\]()"]*')
_FIELD = re.compile(r'(?<![a-z_])([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"{}]+|\{[^{}"]*\})')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
_OPENING = "{(["
_HEAD = re.compile(r"\s*(ROOT )?%?([^\s=%{}()]+) = ")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")


class InstructionHead(NamedTuple):
    """What an instruction's line begins with: `ROOT %name = shape opcode(`.

    Attributes:
      opcode: in XLA's spelling of the text.
      operands_start: position after the opcode's bracket.
    """

    is_root: bool
    name: str
    shape_start: int
    shape_end: int
    opcode: str
    operands_start: int


def instruction_head(text: str) -> InstructionHead | None:
    """The head of an instruction's line; None for text of another form."""
    head = _HEAD.match(text)
    if head is None:
        return None
    start = head.end()
    end = bracket_end(text, start) if text.startswith("(", start) else text.find(" ", start)
    opcode = _OPCODE.match(text, end) if end > 0 else None
    if opcode is None:
        return None
    return InstructionHead(head[1] is not None, head[2], start, end, opcode[1], opcode.end())


def bracket_end(text: str, start: int) -> int:
    """Position after the bracket that closes the one at `start`, or -1.

    Brackets inside quoted strings do not count.
    """
    # Most brackets are not nested, and this takes a fifth of the time of counting.
    if flat := _FLAT.match(text, start):
        return flat.end()
    depth = 0
    for token in _TOKEN.finditer(text, start):
        character = text[token.start()]
        if character == '"':
            continue
        if character in _OPENING:
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def attribute_values(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, end) of each `, name=value` from `start` on.

    It stops at text of another form; the caller compares the last `end` with the text's length.
    """
    while match := _ATTRIBUTE.match(text, start):
        value = match.end()
        end = _value_end(text, value)
        if end < 0:
            return
        yield match[1], value, end
        start = end


def _value_end(text: str, start: int) -> int:
    """End of an attribute's value, which may contain spaces and brackets, or -1."""
    position = start
    while position < len(text):
        character = text[position]
        if character == '"':
            match = _STRING.match(text, position)
            if match is None:
                return -1
            position = match.end()
        elif character in _OPENING:
            position = bracket_end(text, position)
            if position < 0:
                return -1
        elif character == ",":
            if _ATTRIBUTE.match(text, position):
                return position
            position += 1
        elif character in "})]":
            return -1
        else:
            plain = _PLAIN.match(text, position)
            assert plain is not None  # the pattern matches the empty string
            position = plain.end()
    return position


def fields(text: str) -> dict[str, str]:
    """Fields of `{a="x" b=1}` in metadata or stack frame tables, with strings unquoted."""
    return {
        name: unescape(value[1:-1]) if value.startswith('"') else value
        for name, value in _FIELD.findall(text)
    }


def unquote(text: str) -> str | None:
    """The string that `text` quotes; None if it is not a quoted string."""
    match = _STRING.fullmatch(text)
    return None if match is None else unescape(match[1])


def unescape(text: str) -> str:
    """Undo absl::CEscape, which XLA applies to the bytes of strings."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescaped, text.encode()).decode("utf-8", "replace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1].isdigit():
        return bytes([int(code, 8) & 0xFF]) if code[:1] < b"8" else code
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _ESCAPED.get(code, code)
