"""Results of compiling children, so that an unchanged program is compiled once.

A child looks here when it has imported and lowered the step; where the parent has lowered it, no
child is started for a result that is here. The key is a digest of the lowered
module with its source lines, of everything else that XLA gets, and of XLA itself. What the user's
code reads while it is imported and traced, such as modules, files and variables, need not be known:
it acts through the module alone. So every run imports and traces the step, and saves XLA's time.
"""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec

from xlapipe.compile.job import Job
from xlapipe.compile.messages import (
    CompileRecord,
    LoweredProgram,
    source_root_pattern,
    to_json,
)
from xlapipe.devices.environment.scratch import is_trusted, make_own_folder
from xlapipe.devices.platforms import Platform
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import parse_json, read_plain
from xlapipe.files.typed_data import typed
from xlapipe.files.writing import remove_left, write_files
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.registry import WorkloadReference

# Larger results are not kept: XLA's texts of programs whose loops carry thousands of leaves.
_LARGEST_RESULT_BYTES = 512 << 20
_LARGEST_CACHE_BYTES = 2 << 30
_UNUSED_SECONDS = 30 * 24 * 3600
# Six times smaller, at 200 MB/s.
_COMPRESSION_LEVEL = 1
_RECORD = "record.json"
_JAX = ("jax", "jaxlib")
# Variables of XLA, its plugins, the libraries that they load, and LLVM.
_READ_BY_COMPILERS = re.compile(
    r"(XLA_|JAX_|TF_|TPU_|LIBTPU_|CUDA|CUDNN|NVIDIA_|NCCL_|LD_|LLVM_|MLIR_|TRITON_)"
)
# Holds only paths of the compile's own folder, whose files are in the key.
_OWN_VARIABLES = ("XLA_FLAGS",)
_PROGRAMS = ("ptxas", "nvlink")


@dataclass(frozen=True)
class CompileCache:
    """A folder with one file per result; several processes may use it at the same time."""

    folder: Path

    def restore(
        self, key: str, job: Job, arguments: Sequence[ArgumentLeaf]
    ) -> CompileRecord | None:
        """Writes XLA's files of an earlier compile where `job` wants them."""
        path = self._path(key)
        if not is_trusted(path, made_by=self.folder):
            return None
        with suppress(Exception):  # zipfile raises errors of many classes for damaged data
            content = read_plain(path, limit_bytes=_LARGEST_RESULT_BYTES)
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_RESULT_BYTES:
                    return None
                files = {name: archive.read(name) for name in archive.namelist()}
            if archive.comment != _binding(key, files):  # of another key, or of an earlier form
                return None
            record = typed(CompileRecord, parse_json(files.pop(_RECORD)))
            if list(map(_leaf, record.arguments)) != list(map(_leaf, arguments)):
                return None
            write_files({_place(name, job): data for name, data in files.items()})
            with suppress(OSError):  # the cache may be read-only
                os.utime(path)
            return record
        return None

    def keep(self, key: str, job: Job, record: CompileRecord) -> None:
        """Keeps the result of a compile; does nothing where it cannot be written."""
        # libtpu also makes folders, which nothing reads.
        paths = [path for path in job.dump_folder.iterdir() if path.is_file()]
        paths += [job.executable_path] * job.serialize
        with suppress(XlapipeError, OSError):
            if sum(path.stat().st_size for path in paths) > _LARGEST_RESULT_BYTES:
                return
            kept = replace(record, compiled_at=datetime.now(UTC).isoformat(timespec="minutes"))
            files = {str(path.relative_to(job.scratch)): path.read_bytes() for path in paths}
            # Its relative paths are of any folder, and capturing leaves them as they are.
            files[_RECORD] = _without_root(to_json(kept).decode(), job).encode()
            packed = io.BytesIO()
            with zipfile.ZipFile(
                packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL
            ) as archive:
                archive.comment = _binding(key, files)
                for name, content in files.items():
                    archive.writestr(name, content)
            make_own_folder(self.folder)
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
        remove_left(self.folder)
        oldest, total_bytes = time.time() - _UNUSED_SECONDS, 0
        for state, path in states:
            total_bytes += state.st_size
            if state.st_mtime < oldest or total_bytes > _LARGEST_CACHE_BYTES:
                path.unlink(missing_ok=True)


def _leaf(leaf: ArgumentLeaf) -> tuple[object, ...]:
    return leaf.path, leaf.shape, leaf.dtype, leaf.parameter_number


def _binding(key: str, files: Mapping[str, bytes]) -> bytes:
    """What an archive states of itself: the digest of its key and of all its members."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    text = json.dumps([key, sorted(digests.items())])
    return hashlib.sha256(text.encode()).hexdigest().encode()


def compile_key(job: Job, program: LoweredProgram, environment: Mapping[str, str]) -> str:
    """SHA-256 of all that the result of a compile depends on."""
    stated = to_json(replace(program, stablehlo=b"", expectations=())).decode()
    return digest_of(
        stablehlo=program.stablehlo,
        program=_without_root(stated, job),
        # What the workload was made of is in the program.
        job=replace(
            job,
            reference=WorkloadReference("", ""),
            program=None,
            timeout_seconds=0.0,
            child_memory_bytes=None,
            network=None,
            scratch=Path(),
            cache_folder=None,
            cache_key=None,
            started_seconds=0.0,
            source_root="",
            import_paths=(),
            instead_of=None,
        ),
        compiler=compiler_identity(job.platform, environment),
    )


def _without_root(text: str, job: Job) -> str:
    """JSON with relative paths of the user's sources: a checkout in another folder is the same."""
    root = json.dumps(job.source_root)[1:-1]
    return re.sub(source_root_pattern(root), "", text) if root else text


def _place(name: str, job: Job) -> Path:
    """Where a file of a result goes."""
    path = Path(job.scratch, name)
    if path.parent == job.dump_folder or (job.serialize and path == job.executable_path):
        return path
    raise ValueError(name)


def compiler_identity(own_platform: Platform, environment: Mapping[str, str]) -> dict[str, object]:
    """What compiles: contents of packages, xlapipe itself, and the environment, as plain data.

    Another compiler, another xlapipe, or another variable that XLA reads is another key.
    """
    return {
        "packages": {name: _package(name) for name in (*_JAX, *own_platform.compiler_packages)},
        "xlapipe": _xlapipe_sources(),
        "python": sys.version,
        "machine": platform.machine(),
        "standard library": os.path.dirname(os.__file__),
        "variables": {
            name: value
            for name, value in sorted(environment.items())
            if _READ_BY_COMPILERS.match(name) and name not in _OWN_VARIABLES
        },
        "programs": {name: _program(name, environment.get("PATH")) for name in _PROGRAMS},
    }


def digest_of(**parts: object) -> str:
    """SHA-256 of plain data and dataclasses, whatever the order of keys."""
    plain = msgspec.to_builtins(parts, enc_hook=str, order="deterministic")
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _package(name: str) -> list[str] | None:
    """Version of an installed package, and a digest of the list of its files with their digests."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    record = installed.read_text("RECORD") or ""
    return [installed.version, hashlib.sha256(record.encode()).hexdigest()]


def _program(name: str, path: str | None) -> tuple[str, int, int] | None:
    """Where XLA would find a program, its bytes and when it was written: toolkits are replaced."""
    place = shutil.which(name, path=path)
    if place is None:
        return None
    state = Path(place).stat()
    return place, state.st_size, state.st_mtime_ns


@cache
def _xlapipe_sources() -> str:
    """Digest of xlapipe's own modules: a checkout changes without another version."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
