"""The source lines of a dump's instructions, in a separate file.

XLA writes the stack frames of the traced program into the module. A dump keeps them in
`source_lines.json`, so that none of its other files changes where lines of the program move.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.dump.readers.stack_frames import StackFrames
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, read_plain
from xlapipe.files.visible_text import visible_line
from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import Frame

SCHEMA_VERSION = 1
_HEAD = b'{"schema_version": 1, "sha256": "%s",\n'
_REQUESTED = ("requested_dots", "requested_collectives")
_DAMAGED = "copy the whole folder, or make the dump again"


@dataclass(frozen=True)
class FrameLocation:
    """A place in the traced program."""

    file: str
    function: str
    line: int
    column: int


@dataclass(frozen=True)
class SourceLines:
    """The content of `source_lines.json`.

    Attributes:
      module_sha256: digest of the serialised HloProto that the names are of.
      locations: locations of the frames; numbers of locations and frames count from 1.
      frames: the location and the parent of each frame, 0 for none.
      instructions: names of the instructions of each frame, separated by spaces.
      requested_dots: a line for each of the manifest's, or None.
      requested_collectives: likewise.
    """

    module_sha256: str
    locations: tuple[FrameLocation, ...]
    frames: tuple[tuple[int, int], ...]
    instructions: tuple[str, ...]
    requested_dots: tuple[SourceLine | None, ...] = ()
    requested_collectives: tuple[SourceLine | None, ...] = ()

    @cached_property
    def frame_of(self) -> Mapping[str, int]:
        """The frame's number by the name of the instruction."""
        return {
            name: number
            for number, names in enumerate(self.instructions, start=1)
            for name in names.split()
        }

    @cached_property
    def stack_frames(self) -> StackFrames:
        """The frames by number."""
        places = (FrameLocation("", "", 0, 0), *self.locations)
        return StackFrames(
            [
                Frame(
                    places[location].file, places[location].line, parent, places[location].function
                )
                for location, parent in self.frames
            ]
        )

    def to_bytes(self) -> bytes:
        """The file's content, with each location and each frame on a line."""
        content = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        parts = ",\n".join(f" {json.dumps(key)}: {_rows(value)}" for key, value in content.items())
        rest = f"{parts}\n}}\n".encode()
        return _HEAD % hashlib.sha256(rest).hexdigest().encode() + rest

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> "SourceLines":
        """The lines that `to_bytes` wrote.

        Raises:
          DumpError: the data has another form or schema, or was edited.
        """
        rest = data.partition(b"\n")[2]
        try:
            content = json.loads(data)
            schema = content["schema_version"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise DumpError(
                f"{where}: expected source lines as JSON, found: {visible_line(str(error))}; "
                f"fix: {_DAMAGED}"
            ) from None
        if schema != SCHEMA_VERSION:
            raise DumpError(
                f"{where}: schema version {visible_line(repr(schema))}, expected "
                f"{SCHEMA_VERSION}; fix: update xlapipe, or make the dump again"
            )
        if data != _HEAD % hashlib.sha256(rest).hexdigest().encode() + rest:
            raise DumpError(
                f"{where}: content differs from the SHA-256 in it, so the file is damaged or was "
                f"edited; fix: {_DAMAGED}"
            )
        if not _has_form(content):
            raise DumpError(f"{where}: expected lists of rows, found others; fix: {_DAMAGED}")
        lines = cls(
            content["module_sha256"],
            tuple(FrameLocation(*row) for row in content["locations"]),
            tuple((location, parent) for location, parent in content["frames"]),
            tuple(content["instructions"]),
            *(tuple(row and SourceLine(*row) for row in content[name]) for name in _REQUESTED),
        )
        count = len(lines.frames)
        known = all(
            0 <= location <= len(lines.locations) and 0 <= parent <= count
            for location, parent in lines.frames
        )
        if not known or len(lines.instructions) != count:
            raise DumpError(
                f"{where}: expected frames with known locations and parents, found others; "
                f"fix: {_DAMAGED}"
            )
        return lines


def read_source_lines(path: Path) -> SourceLines:
    """Reads `source_lines.json`.

    Raises:
      DumpError: the file is missing or damaged.
    """
    data = read_plain(path, refusal=Refusal(DumpError, _DAMAGED), follow_links=False)
    return _read_before(data, str(path))


@lru_cache(maxsize=1)
def _read_before(data: bytes, where: str) -> SourceLines:
    """A dump's plan and its manifest both need the lines."""
    return SourceLines.from_bytes(data, where=where)


def check_module(lines: SourceLines, proto: bytes, *, where: str) -> None:
    """Checks that `lines` are of a module.

    Args:
      proto: the serialised HloProto.

    Raises:
      DumpError: they are of another module.
    """
    if hashlib.sha256(proto).hexdigest() != lines.module_sha256:
        raise DumpError(
            f"{where}: expected the module that {SOURCE_LINES} beside it is of, found another; "
            f"fix: {_DAMAGED}"
        )


def _plain(value: Any) -> Any:
    """The value of a field as lists, texts and numbers."""
    if isinstance(value, (FrameLocation, SourceLine)):
        return list(asdict(value).values())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _has_form(content: Mapping[str, Any]) -> bool:
    """Whether the fields have the types of `SourceLines`; faster than comparing annotations."""
    names = content.get("instructions")
    requested = [
        [row for row in rows if row is not None] if isinstance(rows, list) else rows
        for rows in (content.get(name) for name in _REQUESTED)
    ]
    return (
        type(content.get("module_sha256")) is str
        and _are_rows(content.get("locations"), [str, str, int, int])
        and _are_rows(content.get("frames"), [int, int])
        and isinstance(names, list)
        and all(type(name) is str for name in names)
        and all(_are_rows(rows, [str, int]) for rows in requested)
    )


def _are_rows(rows: Any, types: list[type]) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and list(map(type, row)) == types for row in rows
    )


def _rows(value: Any) -> str:
    """JSON with each item of a list on a line."""
    if not isinstance(value, list) or not value:
        return json.dumps(value)

    def lines() -> Iterator[str]:
        for item in value:
            yield f"  {json.dumps(item, ensure_ascii=False)}"

    return "[\n" + ",\n".join(lines()) + "\n ]"
