"""Parse the header of an HLO text: the module's line and the tables of stack frames.

    HloModule jit_f, is_scheduled=true, input_output_alias={ {1}: (2, {}, may-alias) }, …

    FileNames
    1 "model.py"

    FileLocations
    1 {file_name_id=1 function_name_id=1 line=16 …}

    StackFrames
    1 {file_location_id=1 parent_frame_id=1}

The computations follow.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from xlapipe.dump.readers.hlo_syntax import attribute_values, fields, unquote
from xlapipe.dump.readers.source_text import LineReader
from xlapipe.plans import InputOutputAlias
from xlapipe.plans.call_chains import Frame

_MODULE = re.compile(r"HloModule ([^\s,]+).*")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}(?:, (may|must)-alias)?\)(?:, | *$)")
_DONOR = re.compile(r"\((\d+), \{([\d, ]*)\}\)(?:, | *$)")
TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d+) (.*)")

Item = TypeVar("Item")
Donor = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class HloHeader:
    """The part of an HLO text before the computations."""

    name: str
    aliases: tuple[InputOutputAlias, ...]
    buffer_donors: tuple[Donor, ...]
    frames: Sequence[Frame]


def parse_header(lines: LineReader) -> HloHeader:
    """The header, at the start of the file."""
    lines.skip_blank()
    match = lines.expect(_MODULE, "`HloModule name, …`")
    line = match.string
    attributes: dict[str, str] = {}
    end = match.end(1)
    for name, start, stop in attribute_values(line, end):
        attributes[name] = line[start:stop]
        end = stop
    if end != len(line):
        lines.fail_at("attributes `, name=value` up to the end of the line")
    aliases = _aliases(attributes.get("input_output_alias", "{}"), lines)
    donors = _donors(attributes.get("buffer_donor", "{}"), lines)
    return HloHeader(match[1], aliases, donors, _frames(lines))


def sorted_aliases(aliases: list[InputOutputAlias]) -> tuple[InputOutputAlias, ...]:
    """Aliases in the order of a Plan: by output."""
    return tuple(sorted(aliases, key=lambda alias: alias.output_index or ()))


def _aliases(text: str, lines: LineReader) -> tuple[InputOutputAlias, ...]:
    return sorted_aliases(
        [
            InputOutputAlias(
                parameter_number=lines.int64(parameter, "a parameter number"),
                output_index=lines.shape_index(output),
                parameter_index=lines.shape_index(index),
                must_alias=kind == "must",
            )
            for output, parameter, index, kind in _entries(_ALIAS, text, lines)
        ]
    )


def _donors(text: str, lines: LineReader) -> tuple[Donor, ...]:
    return tuple(
        sorted(
            (lines.int64(parameter, "a parameter number"), lines.shape_index(index))
            for parameter, index in _entries(_DONOR, text, lines)
        )
    )


def _entries(
    pattern: re.Pattern[str], text: str, lines: LineReader
) -> Iterator[tuple[str | Any, ...]]:
    """Groups of each match of `pattern`; the matches have to cover all text between the braces."""
    inner = text[1:-1].strip()
    position = 0
    while position < len(inner):
        match = pattern.match(inner, position)
        if match is None:
            lines.fail_at("aliases `{1}: (2, {}, may-alias)` and donors `(0, {})`")
        yield match.groups()
        position = match.end()


def _frames(lines: LineReader) -> Sequence[Frame]:
    tables: dict[str, list[Any]] = {name: [] for name in TABLES}
    names, functions, places, frames = tables.values()

    def row(heading: str, text: str) -> Any:
        if heading == "FileLocations":
            file = _referenced(lines, text, "file_name_id", names, "")
            function = _referenced(lines, text, "function_name_id", functions, "")
            return Frame(file, _number(lines, text, "line"), 0, function)
        if heading == "StackFrames":
            place = _referenced(lines, text, "file_location_id", places, Frame("", 0, 0))
            return place._replace(parent=_number(lines, text, "parent_frame_id"))
        name = unquote(text.strip())
        if name is None:
            lines.fail_at('a name in quotes, `1 "model.py"`')
        return name

    lines.skip_blank()
    while (heading := (lines.following or "").strip()) in tables:
        lines.number += 1
        rows = tables[heading]
        for match in lines.matching(_ENTRY):
            if match[1] != str(len(rows) + 1):
                lines.fail_at(f"entry {len(rows) + 1} of {heading}")
            rows.append(row(heading, match[2]))
        lines.skip_blank()
    highest = max((frame.parent for frame in frames), default=0)
    if highest > len(frames):
        lines.fail(f"parent_frame_id of at most {len(frames)}", str(highest))
    # If XLA prints parent ids plus one, a root frame seems to be its own parent.
    shifted = bool(frames) and frames[0].parent == 1
    return [frame._replace(parent=frame.parent - shifted) for frame in frames]


def _number(lines: LineReader, text: str, key: str) -> int:
    """The number for `key` in the text; 0 if absent."""
    value = fields(text).get(key, "0")
    if not value.isdecimal():
        lines.fail_at(f"a number for {key}")
    return lines.int64(value, key)


def _referenced(
    lines: LineReader, text: str, key: str, items: Sequence[Item], default: Item
) -> Item:
    """The item that the number for `key` refers to, from 1; the default for 0."""
    number = _number(lines, text, key)
    if number > len(items):
        lines.fail(f"{key} of at most {len(items)}", str(number))
    return items[number - 1] if number else default
