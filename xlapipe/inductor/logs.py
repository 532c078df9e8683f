"""A log that TORCH_LOGS wrote: AOT graphs, wrapper code and IR among other lines.

A record begins with a prefix, which differs:

- Python's logging, once in a record: `DEBUG:torch._inductor.codecache.__output_code:Output code:`;
- torch's own, on every line: `V0716 15:02:31.123000 4711 torch/_inductor/graph.py:2104] [0/0]
  [__output_code] # AOT ID: ['0_forward']`;
- up to torch 2.1: `[2023-09-07 16:19:49,123] [0/0] torch._inductor.graph: [DEBUG] Output code:`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.inductor.ir.text import is_ir_header
from xlapipe.inductor.text_lines import TextLines

_TORCH = re.compile(
    r"(?:\[rank\d+\]:)?[VIDWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+?:\d+\] ?(?P<rest>.*)"
)
_OLD = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\] ?(?P<rest>.*)")
_LOGGING = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):(?P<name>[\w.]+):(?P<rest>.*)")
_TAG = re.compile(r"\s*\[(?:\d+/\d+(?:_\d+)?|__\w+|[\d/_ ]*)\] ?")
_OLD_NAME = re.compile(r"(?:torch[\w.]*: )?\[(?:DEBUG|INFO|WARNING)\] ?")
_OUTPUT_CODE = re.compile(r"\s*Output code: ?(?P<first>.*)")
_GRAPH = re.compile(r"\s*=====+ (?P<kind>\w+) graph (?P<id>\d+)")
_CODE_START = re.compile(r"# AOT ID: \[|from ctypes import|import torch\b")
_LAST_LINE = "compiled_module_main("


@dataclass(frozen=True, slots=True)
class Section:
    """A document inside a log.

    Attributes:
      kind: `wrapper`, `ir` or `graph`.
      title: `Forward 0` for an AOT graph, `BEFORE` or `AFTER` for IR.
    """

    kind: str
    title: str
    text: TextLines


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the log.

    Attributes:
      begins: whether a record begins here.
      prefixed: whether torch's own prefix was taken off.
    """

    number: int
    text: str
    begins: bool
    prefixed: bool


def log_sections(text: TextLines) -> tuple[Section, ...]:
    """The documents in a log, in order."""
    lines = [_plain(number, line) for number, line in zip(text.numbers, text.lines, strict=True)]
    return tuple(_sections(text.where, lines))


def _plain(number: int, line: str) -> _Line:
    """A line without its prefix."""
    for pattern, prefixed in ((_TORCH, True), (_OLD, True), (_LOGGING, False)):
        match = pattern.match(line)
        if match is not None:
            rest = match["rest"]
            if prefixed:
                while (tag := _TAG.match(rest)) is not None:
                    rest = rest[tag.end() :]
                rest = _OLD_NAME.sub("", rest, count=1)
            return _Line(number, rest, True, prefixed)
    return _Line(number, line, False, False)


def _sections(where: str, lines: list[_Line]) -> Iterator[Section]:
    at = 0
    while at < len(lines):
        line = lines[at].text
        if (match := _OUTPUT_CODE.match(line)) is not None:
            start = at if _CODE_START.match(match["first"]) else at + 1
            end = _end_of_code(lines, start)
            if end > start and any(
                _CODE_START.match(code_line.text) for code_line in lines[start:end]
            ):
                yield Section("wrapper", "", _part(where, lines, start, end))
                at = end
                continue
        elif (match := _GRAPH.match(line)) is not None:
            end = _end_of_record(lines, at + 1)
            title = f"{match['kind']} {match['id']}"
            yield Section("graph", title, _part(where, lines, at, end))
            at = end
            continue
        elif line.strip() in ("BEFORE FUSION", "AFTER FUSION") or is_ir_header(line.strip()):
            end = _end_of_ir(lines, at + 1)
            title = line.strip().partition(" ")[0] if "FUSION" in line else ""
            yield Section("ir", title, _part(where, lines, at, end))
            at = end
            continue
        at += 1


def _end_of_code(lines: list[_Line], start: int) -> int:
    """The end of a module: its last statement, or the next record of another kind."""
    prefixed = lines[start].prefixed if start < len(lines) else False
    for at in range(start, len(lines)):
        line = lines[at]
        if line.prefixed and line.text.startswith("Output code"):
            return at
        if line.begins and not line.prefixed and at > start:
            return at
        if prefixed and not line.prefixed:
            return at
        if _LAST_LINE in line.text and line.text[:1] == " ":
            return at + 1
    return len(lines)


def _end_of_record(lines: list[_Line], start: int) -> int:
    """The end of a graph: its `return`, or the next record."""
    for at in range(start, len(lines)):
        line = lines[at]
        if line.begins and not line.prefixed:
            return at
        if line.text.lstrip().startswith("return "):
            return at + 1
        if _GRAPH.match(line.text) is not None or _OUTPUT_CODE.match(line.text) is not None:
            return at
    return len(lines)


def _end_of_ir(lines: list[_Line], start: int) -> int:
    prefixed = lines[start].prefixed if start < len(lines) else False
    for at in range(start, len(lines)):
        line = lines[at]
        text = line.text.strip()
        if text in ("BEFORE FUSION", "AFTER FUSION") or _GRAPH.match(line.text) is not None:
            return at
        if _OUTPUT_CODE.match(line.text) is not None:
            return at
        if (line.begins and not line.prefixed) or (prefixed and not line.prefixed):
            return at
    return len(lines)


def _part(where: str, lines: list[_Line], start: int, end: int) -> TextLines:
    part = lines[start:end]
    return TextLines(where, [line.text for line in part], [line.number for line in part])
