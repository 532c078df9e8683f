"""The source lines of a dump's instructions, in a separate file.

XLA writes the stack frames of the traced program into the module. A dump keeps them in
`source_lines.json`, so that none of its other files changes where lines of the program move.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.dump.readers.stack_frames import StackFrames
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, read_plain
from xlapipe.files.typed_data import parse_typed
from xlapipe.files.visible_text import visible_line
from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import Frame

SCHEMA_VERSION = 1
_HEAD = b'{"schema_version": 1, "sha256": "%s",\n'
_REQUESTED = ("requested_dots", "requested_collectives")
_DAMAGED = "copy the whole folder, update xlapipe, or make the dump again"


class FrameLocation(NamedTuple):
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
        located = ((places[location], parent) for location, parent in self.frames)
        return StackFrames(
            [Frame(place.file, place.line, parent, place.function) for place, parent in located]
        )

    def to_bytes(self) -> bytes:
        """The file's content, with each location and each frame on a line."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _REQUESTED:
            content[name] = [line and (line.file, line.line) for line in content[name]]
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
            content = parse_typed(data, _Content, schema_version=SCHEMA_VERSION)
        except ValueError as error:
            raise DumpError(f"{where}: {visible_line(str(error))}; fix: {_DAMAGED}") from None
        if data != _HEAD % hashlib.sha256(rest).hexdigest().encode() + rest:
            raise DumpError(
                f"{where}: content differs from the SHA-256 in it, so the file is damaged or was "
                f"edited; fix: {_DAMAGED}"
            )
        lines = cls(
            content.module_sha256,
            content.locations,
            content.frames,
            content.instructions,
            *(tuple(row and SourceLine(*row) for row in getattr(content, it)) for it in _REQUESTED),
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


_Rows: TypeAlias = tuple[tuple[str, int] | None, ...]


@dataclass(frozen=True)
class _Content:
    """The file's content except `schema_version`; a line is a row."""

    module_sha256: str
    locations: tuple[FrameLocation, ...]
    frames: tuple[tuple[int, int], ...]
    instructions: tuple[str, ...]
    requested_dots: _Rows
    requested_collectives: _Rows


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


def _rows(value: Any) -> str:
    """JSON with each item of a list on a line."""
    if isinstance(value, str) or not value:
        return json.dumps(value)
    lines = (f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
    return "[\n" + ",\n".join(lines) + "\n ]"
