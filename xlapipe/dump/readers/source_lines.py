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
from xlapipe.dump.readers.source_text import refuse
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, read_plain
from xlapipe.files.typed_data import parse_typed
from xlapipe.files.visible_text import visible_line
from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import CallChains, Frame

SCHEMA_VERSION = 1
_HEAD = b'{"schema_version": 1, "sha256": "%s",\n'
_DAMAGED = "copy the whole folder, update xlapipe, or make the dump again"

_Rows: TypeAlias = tuple[tuple[str, int] | None, ...]


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
      requested_dots: file and line of each of the manifest's, or None.
      requested_collectives: likewise.
    """

    module_sha256: str
    locations: tuple[FrameLocation, ...]
    frames: tuple[tuple[int, int], ...]
    instructions: tuple[str, ...]
    requested_dots: _Rows = ()
    requested_collectives: _Rows = ()

    @cached_property
    def frame_of(self) -> Mapping[str, int]:
        """The frame's number by the name of the instruction."""
        return {
            name: number
            for number, names in enumerate(self.instructions, start=1)
            for name in names.split()
        }

    @cached_property
    def chains(self) -> CallChains:
        places = (FrameLocation("", "", 0, 0), *self.locations)
        located = ((places[location], parent) for location, parent in self.frames)
        frames = [
            Frame(place.file, place.line, parent, place.function) for place, parent in located
        ]
        return CallChains(frames, self.frame_of)

    def to_bytes(self) -> bytes:
        """The file's content, with each location and each frame on a line."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = ",\n".join(f" {json.dumps(key)}: {_rows(value)}" for key, value in content.items())
        rest = f"{parts}\n}}\n".encode()
        return _HEAD % hashlib.sha256(rest).hexdigest().encode() + rest

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> "SourceLines":
        rest = data.partition(b"\n")[2]
        try:
            lines = parse_typed(data, cls, schema_version=SCHEMA_VERSION)
        except ValueError as error:
            raise DumpError(f"{where}: {visible_line(str(error))}; fix: {_DAMAGED}") from None
        if data != _HEAD % hashlib.sha256(rest).hexdigest().encode() + rest:
            raise DumpError(
                f"{where}: content differs from the SHA-256 in it, so the file is damaged or was "
                f"edited; fix: {_DAMAGED}"
            )
        count = len(lines.frames)
        known = all(
            0 <= location <= len(lines.locations) and 0 <= parent <= count
            for location, parent in lines.frames
        )
        if not known or len(lines.instructions) != count:
            refuse(where, "frames with known locations and parents", "others", _DAMAGED)
        return lines


def read_source_lines(path: Path) -> SourceLines:
    """Reads `source_lines.json`."""
    data = read_plain(path, refusal=Refusal(DumpError, _DAMAGED), follow_links=False)
    return _read_before(data, str(path))


@lru_cache(maxsize=1)
def _read_before(data: bytes, where: str) -> SourceLines:
    """A dump's plan and its manifest both need the lines."""
    return SourceLines.from_bytes(data, where=where)


def source_line(chains: CallChains, frame_id: int) -> SourceLine | None:
    """Line of the innermost frame outside installed libraries, or else of the innermost frame.

    None for id 0 and for an id that is not in the dump.
    """
    chain = chains.from_frame(frame_id)
    frame = next((frame for frame in chain if frame.is_own_code), chain[0] if chain else None)
    return SourceLine(frame.file, frame.line) if frame is not None else None


def check_module(lines: SourceLines, proto: bytes, *, where: str) -> None:
    if hashlib.sha256(proto).hexdigest() != lines.module_sha256:
        refuse(where, f"the module that {SOURCE_LINES} beside it is of", "another", _DAMAGED)


def _rows(value: Any) -> str:
    """JSON with each item of a list on a line."""
    if isinstance(value, str) or not value:
        return json.dumps(value)
    lines = (f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
    return "[\n" + ",\n".join(lines) + "\n ]"
