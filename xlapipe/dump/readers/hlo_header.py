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
from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.dump.readers.hlo_syntax import attribute_values, fields, unquote
from xlapipe.dump.readers.source_text import DUMP_AGAIN_OR_REPORT, SourceText, int64, shape_index
from xlapipe.plans import InputOutputAlias
from xlapipe.plans.call_chains import Frame

_MODULE = re.compile(r"HloModule ([^\s,]+)")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}(?:, (may|must)-alias)?\)(?:, | *$)")
_DONOR = re.compile(r"\((\d+), \{([\d, ]*)\}\)(?:, | *$)")
TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d+) (.*)")

Donor = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class HloHeader:
    """The part of an HLO text before the computations."""

    name: str
    aliases: tuple[InputOutputAlias, ...]
    buffer_donors: tuple[Donor, ...]
    frames: Sequence[Frame]


def parse_header(source: SourceText) -> tuple[HloHeader, int]:
    """The header, and the position of the first line after it.

    Raises:
      DumpError: the first line is not that of a module, or a table is damaged.
    """
    lines = source.lines
    position = 0
    while position < len(lines) and not lines[position].strip():
        position += 1
    match = _MODULE.match(lines[position]) if position < len(lines) else None
    if match is None:
        source.fail_at(position + 1, "`HloModule name, …`")
    line, number = lines[position], position + 1
    attributes: dict[str, str] = {}
    end = match.end()
    for name, start, stop in attribute_values(line, end):
        attributes[name] = line[start:stop]
        end = stop
    if end != len(line):
        source.fail_at(number, "attributes `, name=value` up to the end of the line")
    aliases = _aliases(attributes.get("input_output_alias", "{}"), source, number)
    donors = _donors(attributes.get("buffer_donor", "{}"), source, number)
    frames, position = _frames(source, position + 1)
    return HloHeader(match[1], aliases, donors, frames), position


def sorted_aliases(aliases: list[InputOutputAlias]) -> tuple[InputOutputAlias, ...]:
    """Aliases in the order of a Plan: by output."""
    return tuple(sorted(aliases, key=lambda alias: alias.output_index or ()))


def _aliases(text: str, source: SourceText, number: int) -> tuple[InputOutputAlias, ...]:
    aliases = []
    for output, parameter, index, kind in _entries(_ALIAS, text, source, number):
        aliases.append(
            InputOutputAlias(
                parameter_number=int64(parameter, source, number, "a parameter number"),
                output_index=shape_index(output, source, number),
                parameter_index=shape_index(index, source, number),
                must_alias=kind == "must",
            )
        )
    return sorted_aliases(aliases)


def _donors(text: str, source: SourceText, number: int) -> tuple[Donor, ...]:
    return tuple(
        sorted(
            (
                int64(parameter, source, number, "a parameter number"),
                shape_index(index, source, number),
            )
            for parameter, index in _entries(_DONOR, text, source, number)
        )
    )


def _entries(
    pattern: re.Pattern[str], text: str, source: SourceText, number: int
) -> list[tuple[str, ...]]:
    """Groups of each match of `pattern`; the matches have to cover all text between the braces."""
    inner = text[1:-1].strip()
    entries: list[tuple[str, ...]] = []
    position = 0
    while position < len(inner):
        match = pattern.match(inner, position)
        if match is None:
            source.fail_at(number, "aliases `{1}: (2, {}, may-alias)` and donors `(0, {})`")
        entries.append(tuple(group or "" for group in match.groups()))
        position = match.end()
    return entries


def _frames(source: SourceText, position: int) -> tuple[Sequence[Frame], int]:
    lines = source.lines
    tables: dict[str, list[tuple[int, str]]] = {name: [] for name in TABLES}
    while position < len(lines):
        heading = lines[position].strip()
        if heading in tables:
            position += 1
            while position < len(lines) and (match := _ENTRY.fullmatch(lines[position])):
                entries = tables[heading]
                if match[1] != str(len(entries) + 1):
                    source.fail_at(position + 1, f"entry {len(entries) + 1} of {heading}")
                entries.append((position + 1, match[2]))
                position += 1
        elif heading:
            break
        else:
            position += 1
    if not tables["StackFrames"]:
        return (), position
    names = [_name(source, number, text) for number, text in tables["FileNames"]]
    functions = [_name(source, number, text) for number, text in tables["FunctionNames"]]
    locations = [
        (_reference(source, number, text, "file_name_id", len(names)), number, text)
        for number, text in tables["FileLocations"]
    ]
    # If XLA prints parent ids plus one, a root frame seems to be its own parent.
    shifted = fields(tables["StackFrames"][0][1]).get("parent_frame_id") == "1"
    frames: list[Frame] = []
    for number, text in tables["StackFrames"]:
        at = _reference(source, number, text, "file_location_id", len(locations))
        parent = _reference(source, number, text, "parent_frame_id", len(tables["StackFrames"]))
        name_id, line_number, location = locations[at - 1] if at else (0, 0, "")
        line = _reference(source, line_number, location, "line", None)
        file = names[name_id - 1] if name_id else ""
        function_id = _reference(source, line_number, location, "function_name_id", len(functions))
        function = functions[function_id - 1] if function_id else ""
        frames.append(Frame(file, line, parent - shifted, function))
    return frames, position


def _name(source: SourceText, number: int, text: str) -> str:
    name = unquote(text.strip())
    if name is None:
        source.fail_at(number, 'a name in quotes, `1 "model.py"`')
    return name


def _reference(source: SourceText, number: int, text: str, key: str, limit: int | None) -> int:
    """The number for `key` in `text`; 0 if absent."""
    value = fields(text).get(key, "0")
    if not value.isdecimal():
        source.fail_at(number, f"a number for {key}")
    reference = int64(value, source, number, key)
    if limit is not None and reference > limit:
        source.fail(number, f"{key} of at most {limit}", value, DUMP_AGAIN_OR_REPORT)
    return reference
