"""The text of source lines, where their files are there."""

import os
from functools import cached_property
from pathlib import Path, PurePosixPath

from xlapipe.errors import XlapipeError
from xlapipe.files.contents import read_plain
from xlapipe.plans import SourceLine

_MAX_FILE_BYTES = 4 << 20


class SourceTexts:
    """Reads lines of the files that a dump names, below the current folder or the dump's project.

    A dump is untrusted, so only Python files are looked up, by relative paths, and only downwards.
    """

    def __init__(self, dump: Path) -> None:
        self._dump = dump
        self._lines: dict[str, tuple[str, ...]] = {}

    def of(self, source: SourceLine | None) -> str:
        """The text of a line without indentation; empty if absent."""
        if source is None:
            return ""
        if source.file not in self._lines:
            self._lines[source.file] = self._read(source.file)
        lines = self._lines[source.file]
        return lines[source.line - 1].strip() if 0 < source.line <= len(lines) else ""

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        current, dump = Path.cwd(), self._dump.absolute()
        projects = (_project_of(current), _project_of(dump))
        return (current, *(folder for folder in projects if folder is not None))

    def _read(self, file: str) -> tuple[str, ...]:
        relative = PurePosixPath(file)
        if relative.is_absolute() or ".." in relative.parts or relative.suffix != ".py":
            return ()
        for folder in self._folders:
            path = folder / relative
            if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
                continue
            try:
                data = read_plain(path, limit_bytes=_MAX_FILE_BYTES, follow_links=False)
            except XlapipeError:
                return ()
            return tuple(data.decode(errors="replace").splitlines())
        return ()


def _project_of(path: Path) -> Path | None:
    """The nearest folder above a path that is a project's; None without one."""
    marks = ("pyproject.toml", ".git", "setup.py", "setup.cfg")
    for folder in (path, *path.parents):
        if any(os.path.lexists(folder / mark) for mark in marks):
            return folder
    return None
