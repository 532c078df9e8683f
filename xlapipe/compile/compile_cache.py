"""Results of compiling children, so that an unchanged program is compiled once.

A child looks here when it has imported and lowered the step. The key is a digest of the lowered
module with its source lines, of everything else that XLA gets, and of XLA itself. What the user's
code reads while it is imported and traced, such as modules, files and variables, need not be known:
it acts through the module alone. So every run imports and traces the step, and saves XLA's time.
"""

import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlapipe.compile.compiler_identity import compiler_identity
from xlapipe.compile.lowering.lowered_program import LoweredProgram
from xlapipe.compile.messages import CompileRecord, CompileRequest
from xlapipe.devices.platforms import platform_named
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import parse_json, read_plain
from xlapipe.files.writing import remove_left, write_files

# Larger results are not kept: XLA's texts of programs whose loops carry thousands of leaves.
_LARGEST_RESULT_BYTES = 512 << 20
_LARGEST_CACHE_BYTES = 2 << 30
_UNUSED_SECONDS = 30 * 24 * 3600
# Six times smaller, at 200 MB/s.
_COMPRESSION_LEVEL = 1
_RECORD, _DUMP, _EXECUTABLE = "record.json", "dump/", "executable"
# Fields of a request that only name it, or state where it reads and writes.
_NOT_IN_KEY = frozenset(
    {
        "program_path",
        "shared_lowering",
        "executable_path",
        "result_path",
        "started_seconds",
        "cache_folder",
        "known_results",
    }
)
_DUMP_FOLDER = "xla_dump_to"


@dataclass(frozen=True)
class CompileCache:
    """A folder with one file per result; several processes may use it at the same time."""

    folder: Path

    def restore(self, key: str, request: CompileRequest) -> CompileRecord | None:
        """Writes XLA's files of an earlier compile where `request` wants them.

        Returns:
          The earlier record; None if it is missing or damaged.
        """
        path = self._path(key)
        with suppress(Exception):  # zipfile raises errors of many classes for damaged data
            content = read_plain(path, limit_bytes=_LARGEST_RESULT_BYTES)
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_RESULT_BYTES:
                    return None
                files = {name: archive.read(name) for name in archive.namelist()}
            if archive.comment != _binding(key, files):  # of another key, or of an earlier form
                return None
            record = CompileRecord.from_json(parse_json(files.pop(_RECORD)))
            write_files({_place(name, request): data for name, data in files.items()})
            with suppress(OSError):  # the cache may be read-only
                os.utime(path)
            return record
        return None

    def keep(self, key: str, request: CompileRequest, record: CompileRecord) -> None:
        """Keeps the result of a compile; does nothing where it cannot be written."""
        paths = {f"{_DUMP}{path.name}": path for path in _dump_folder(request).iterdir()}
        if request.executable_path is not None:
            paths[_EXECUTABLE] = Path(request.executable_path)
        with suppress(XlapipeError, OSError):
            if sum(path.stat().st_size for path in paths.values()) > _LARGEST_RESULT_BYTES:
                return
            kept = replace(record, compiled_at=datetime.now(UTC).isoformat(timespec="minutes"))
            files = {name: path.read_bytes() for name, path in paths.items()}
            files[_RECORD] = json.dumps(kept.to_json()).encode()
            packed = io.BytesIO()
            with zipfile.ZipFile(
                packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL
            ) as archive:
                archive.comment = _binding(key, files)
                for name, content in files.items():
                    archive.writestr(name, content)
            write_files({self._path(key): packed.getvalue()})
            self._remove_unused()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.zip"

    def _remove_unused(self) -> None:
        """Removes what was not used for a month, and the longest unused above the size limit."""
        states = sorted(
            ((path.stat(), path) for path in self.folder.glob("*.zip")),
            key=lambda item: -item[0].st_mtime,
        )
        oldest, total_bytes = time.time() - _UNUSED_SECONDS, remove_left(self.folder)
        for state, path in states:
            total_bytes += state.st_size
            if state.st_mtime < oldest or total_bytes > _LARGEST_CACHE_BYTES:
                path.unlink(missing_ok=True)


def _binding(key: str, files: Mapping[str, bytes]) -> bytes:
    """What an archive states of itself: the digest of its key and of all its members."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    text = json.dumps([key, sorted(digests.items())])
    return hashlib.sha256(text.encode()).hexdigest().encode()


def compile_key(
    request: CompileRequest, program: LoweredProgram, environment: Mapping[str, str]
) -> str:
    """SHA-256 of all that the result of a compile depends on.

    Args:
      environment: environment of the process that compiles.
    """
    content: dict[str, Any] = {
        "program": program.compiled,
        "request": {
            **{name: value for name, value in asdict(request).items() if name not in _NOT_IN_KEY},
            # What the workload was made of is in the program.
            "reference": None,
            "options": {
                name: value for name, value in request.options.items() if name != _DUMP_FOLDER
            },
            "executable": request.executable_path is not None,
        },
        "compiler": compiler_identity(platform_named(request.platform), environment),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _dump_folder(request: CompileRequest) -> Path:
    return Path(request.options[_DUMP_FOLDER])


def _place(name: str, request: CompileRequest) -> Path:
    """Where a file of a result goes.

    Raises:
      ValueError: `keep` does not write such a file for this request.
    """
    if name == _EXECUTABLE and request.executable_path is not None:
        return Path(request.executable_path)
    plain = name.removeprefix(_DUMP)
    if not name.startswith(_DUMP) or Path(plain).name != plain:
        raise ValueError(name)
    return _dump_folder(request) / plain
