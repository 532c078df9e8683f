"""A cache of dumps, so that a program that has not changed is not compiled again.

A key is a digest of all that a plan depends on: the lowered module with its source lines, names of
leaves, target, options, autotune lock, versions, and the folder that paths are relative to.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from xlapipe.compile.capture import cells_in
from xlapipe.compile.compiler_identity import compiler_identity, digest_of
from xlapipe.compile.job import Job
from xlapipe.compile.messages import LoweredProgram
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.user_environment import kept_variables, left_out
from xlapipe.dump.dump import Dump, is_dump, open_dump, read_file, write_dump
from xlapipe.dump.manifest import MANIFEST, SCHEMA_VERSION
from xlapipe.dump.normal_form.plan import FORM_VERSION
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import read_plain
from xlapipe.files.writing import remove_left

# Unused dumps are removed after this time, so that the cache does not grow without limit.
_UNUSED_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True)
class CachedDump:
    """A dump in the cache.

    Attributes:
      key: digest of what its plan depends on.
      compiled: True if it was compiled now, False if the cache held it.
    """

    dump: Dump
    key: str
    compiled: bool


@dataclass(frozen=True)
class DumpCache:
    """A folder of dumps by key; several processes may use it at the same time.

    Attributes:
      fix: what to do if the folder cannot be written, for messages.
    """

    folder: Path
    fix: str

    def dump_of(self, job: Job, program: LoweredProgram, *, folder: Path) -> CachedDump:
        """The dump of `program`, compiled if the cache does not hold it.

        If several processes need the same dump, one compiles it and the others wait.

        Args:
          folder: where the child runs, and what source paths are relative to.

        Raises:
          XlapipeError: as `compile_workload`, or the cache cannot be written.
        """
        job = replace(job, program=program, cache_folder=None)
        key = cache_key(job, program, folder)
        path = self.folder / key
        dump = self._read(path)
        if dump is not None:
            with suppress(OSError):  # the cache may be read-only
                os.utime(path)
            return CachedDump(_with_expectations(dump, program), key, compiled=False)
        with self._locked(key) as binding:
            dump = self._read(path)
            if dump is None:
                compiled = compile_dump(job, folder)
                shutil.rmtree(path, ignore_errors=True)  # damaged, or of another key
                write_dump(path, compiled.dump.manifest, compiled.written_files, fix=self.fix)
                os.ftruncate(binding, 0)
                os.pwrite(binding, _binding(path), 0)
                self._remove_unused()
                return CachedDump(open_dump(path), key, compiled=True)
        return CachedDump(_with_expectations(dump, program), key, compiled=False)

    def _read(self, path: Path) -> Dump | None:
        """The dump; None if it is missing, damaged or of another key."""
        if not is_dump(path):
            return None
        try:
            if read_plain(self._lock_of(path.name)) != _binding(path):
                return None
            return open_dump(path)
        except XlapipeError:
            return None

    def _lock_of(self, key: str) -> Path:
        """The lock of a key, which holds what `_binding` returns of its dump."""
        return self.folder / "locks" / key

    def _remove_unused(self) -> None:
        remove_left(self.folder)
        oldest = time.time() - _UNUSED_SECONDS
        for path in self.folder.iterdir():
            if is_dump(path) and path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[int]:
        path = self._lock_of(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise XlapipeError(
                f"cache {self.folder}: cannot be written: {error.strerror}; fix: {self.fix}"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)  # releases the lock


def cache_key(job: Job, program: LoweredProgram, folder: Path) -> str:
    """SHA-256 of all that the dump of `program` depends on, except expectations."""
    target = job.target
    return digest_of(
        program=program.compiled,
        target=None if target is None else (target.name, target.description, target.config_text),
        topology=str(job.topology),
        policy=job.policy,
        options=job.options,
        without=sorted(job.without_xla_patches),
        memory_limit=job.memory_limit_bytes,
        known=None if job.known_results is None else job.known_results.lines,
        lock=None if job.lock is None else job.lock.to_bytes(),
        folder=str(folder),
        cells=cells_in(program.stablehlo),
        schema=(SCHEMA_VERSION, FORM_VERSION),
        compiler=compiler_identity(job.platform, kept_variables(os.environ)),
    )


def _binding(path: Path) -> bytes:
    """The digest of a dump's key and of its manifest, which has the digests of its files."""
    content = path.name.encode() + read_file(path, MANIFEST)
    return hashlib.sha256(content).hexdigest().encode()


def _with_expectations(dump: Dump, program: LoweredProgram) -> Dump:
    """A dump that was compiled earlier, with present expectations and the present environment.

    Variables that the compile does not get from the environment affect neither plan nor key.
    """
    manifest = replace(
        dump.manifest,
        expectations=program.expectations,
        left_out=left_out(os.environ, lowered_here=True),
    )
    return replace(dump, manifest=manifest)
