"""The source lines of a dump's instructions, in a file of their own.

XLA writes the stack frames of the traced program into the module. A dump keeps them in
`source_lines.json`, so that none of its other files changes where lines of the program move.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, read_json
from xlapipe.files.field_types import misfit
from xlapipe.files.visible_text import visible_line
from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import Frame
from xlapipe.platforms.dump_files import SOURCE_LINES
from xlapipe.readers.stack_frames import StackFrames

SCHEMA_VERSION = 1
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
      locations: of the frames; numbers of locations and frames count from 1.
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
        content = {name: _plain(getattr(self, name)) for name in _FIELDS}
        head = {"schema_version": SCHEMA_VERSION, "sha256": _digest(content)}
        parts = ",\n".join(f" {json.dumps(key)}: {_rows(value)}" for key, value in content.items())
        return f"{json.dumps(head)[:-1]},\n{parts}\n}}\n".encode()

    @classmethod
    def from_json(cls, data: Any, *, where: str) -> "SourceLines":
        """Raises DumpError for data of another form or schema, and for an edited file."""
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            raise DumpError(
                f"{where}: expected source lines of schema version {SCHEMA_VERSION}, found "
                "another form; fix: update xlapipe, or make the dump again"
            )
        content: dict[str, Any] = {name: data.get(name) for name in _FIELDS}
        if _digest(content) != data.get("sha256"):
            raise DumpError(
                f"{where}: content differs from the SHA-256 in it, so the file is damaged or was "
                f"edited; fix: {_DAMAGED}"
            )
        try:
            lines = cls(
                content["module_sha256"],
                tuple(FrameLocation(*row) for row in content["locations"]),
                tuple(map(tuple, content["frames"])),
                tuple(content["instructions"]),
                *(tuple(row and SourceLine(*row) for row in content[name]) for name in _REQUESTED),
            )
        except TypeError as error:
            raise DumpError(f"{where}: {visible_line(str(error))}; fix: {_DAMAGED}") from None
        problem = misfit(lines, SourceLines, "source_lines") or lines._unknown_number()
        if problem is not None:
            raise DumpError(f"{where}: {visible_line(problem)}; fix: {_DAMAGED}")
        return lines

    def _unknown_number(self) -> str | None:
        count = len(self.frames)
        known = all(
            0 <= location <= len(self.locations) and 0 <= parent <= count
            for location, parent in self.frames
        )
        if known and len(self.instructions) == count:
            return None
        return "a frame has an unknown location or parent"


_REQUESTED = ("requested_dots", "requested_collectives")
_FIELDS = tuple(field.name for field in fields(SourceLines))


def read_source_lines(path: Path) -> SourceLines:
    """Reads `source_lines.json`.

    Raises:
      DumpError: the file is missing or damaged.
    """
    data = read_json(path, refusal=Refusal(DumpError, _DAMAGED), follow_links=False)
    return SourceLines.from_json(data, where=str(path))


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


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _rows(value: Any) -> str:
    """JSON with each item of a list on a line."""
    if not isinstance(value, list) or not value:
        return json.dumps(value)

    def lines() -> Iterator[str]:
        for item in value:
            yield f"  {json.dumps(item, ensure_ascii=False)}"

    return "[\n" + ",\n".join(lines()) + "\n ]"
