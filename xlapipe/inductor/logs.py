"""A log that TORCH_LOGS wrote: AOT graphs, wrapper code and IR among other lines.

A record begins with a prefix, which differs:

- Python's logging, once in a record: `DEBUG:torch._inductor.codecache.__output_code:Output code:`;
- torch's own, on every line: `V0716 15:02:31.123000 4711 torch/_inductor/graph.py:2104] [0/0]
  [__output_code] # AOT ID: ['0_forward']`;
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.inductor.ir.text import is_ir_header
from xlapipe.inductor.text_lines import TextLines

_TORCH = re.compile(
    r"(?:\[rank\d+\]:)?[VIDWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+?:\d+\] ?(?P<rest>.*)"
)
_LOGGING = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):(?P<name>[\w.]+):(?P<rest>.*)")
_TAG = re.compile(r"\s*\[(?:\d+/\d+(?:_\d+)?|__\w+|[\d/_ ]*)\] ?")
_OUTPUT_CODE = re.compile(r"\s*Output code: ?(?P<first>.*)")
_OUTPUT = re.compile(r"\s*Output code\b")
_GRAPH = re.compile(r"\s*=====+ (?P<kind>\w+) graph (?P<id>\d+)")
_CODE_START = re.compile(r"# AOT ID: \[|from ctypes import|import torch\b")
_FUSION = re.compile(r"\s*(?P<title>BEFORE|AFTER) FUSION\s*")
# The last line of a document, by its kind.
_LAST = {
    "wrapper": re.compile(r" .*compiled_module_main\("),
    "graph": re.compile(r"\s*return "),
}


@dataclass(frozen=True, slots=True)
class LogSection:
    """A `wrapper`, `ir` or `graph` inside a log; titles are `Forward 0`, `BEFORE` or `AFTER`."""

    kind: str
    title: str
    text: TextLines


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a log: `begins` a record, and had torch's own prefix (`prefixed`)."""

    number: int
    text: str
    begins: bool
    prefixed: bool


def log_sections(text: TextLines) -> tuple[LogSection, ...]:
    """The documents in a log, in order."""
    lines = [_plain(number, line) for number, line in zip(text.numbers, text.lines, strict=True)]
    return tuple(_sections(text.where, lines))


def _plain(number: int, line: str) -> _Line:
    """A line without its prefix."""
    for pattern, prefixed in ((_TORCH, True), (_LOGGING, False)):
        match = pattern.match(line)
        if match is not None:
            rest = match["rest"]
            if prefixed:
                while (tag := _TAG.match(rest)) is not None:
                    rest = rest[tag.end() :]
            return _Line(number, rest, True, prefixed)
    return _Line(number, line, False, False)


def _sections(where: str, lines: list[_Line]) -> Iterator[LogSection]:
    at = 0
    while at < len(lines):
        kind, title, start = _begun(lines, at)
        end = _end(lines, start, kind) if kind is not None else at
        part = lines[start:end]
        if kind == "wrapper" and not any(_CODE_START.match(line.text) for line in part):
            end = at
        if end > at:
            numbers = [line.number for line in part]
            text = TextLines(where, [line.text for line in part], numbers)
            yield LogSection(kind or "", title, text)
        at = max(end, at + 1)


def _begun(lines: list[_Line], at: int) -> tuple[str | None, str, int]:
    """Kind and title of the document that begins at a line, and the index of its first line."""
    text = lines[at].text
    if (match := _OUTPUT_CODE.match(text)) is not None:
        return "wrapper", "", at if _CODE_START.match(match["first"]) else at + 1
    if (match := _GRAPH.match(text)) is not None:
        return "graph", f"{match['kind']} {match['id']}", at
    if (match := _FUSION.fullmatch(text)) is not None:
        return "ir", match["title"], at
    return ("ir" if is_ir_header(text.strip()) else None), "", at


def _end(lines: list[_Line], start: int, kind: str) -> int:
    """The end of a document: its last line, or the first one of another record or document."""
    first, last = start + (kind != "wrapper"), _LAST.get(kind)
    prefixed = kind != "graph" and first < len(lines) and lines[first].prefixed
    for at in range(first, len(lines)):
        line = lines[at]
        # `Output code written to: …` follows the code.
        other = (line.begins and not line.prefixed) or any(
            title.match(line.text) for title in (_OUTPUT, _GRAPH, _FUSION)
        )
        if (other and at > start) or (prefixed and not line.prefixed):
            return at
        if last is not None and last.match(line.text):
            return at + 1
    return len(lines)
