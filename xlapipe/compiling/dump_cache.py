"""Dumps kept by content, so that what has not changed is not compiled again.

A key covers everything that a plan depends on: the lowered module with its source lines, names of
leaves, target, options, autotune lock, versions, and the folder that paths are relative to.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xlapipe.compiling.job import Job
from xlapipe.compiling.pipeline import compile_dump
from xlapipe.dumps.dump import Dump, is_dump, open_dump, write_dump
from xlapipe.dumps.manifest import SCHEMA_VERSION
from xlapipe.dumps.normal_plan import FORM_VERSION
from xlapipe.errors import DumpError, XlapipeError
from xlapipe.lowering.lowered_program import LoweredProgram

_KEPT_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True)
class Kept:
    """A dump in the cache.

    Attributes:
      key: of its content.
      compiled: False if it was there before.
    """

    dump: Dump
    key: str
    compiled: bool


@dataclass(frozen=True)
class DumpCache:
    """A folder of dumps by key; several processes may use it at once.

    Attributes:
      fix: what to do if the folder cannot be written, for messages.
    """

    folder: Path
    fix: str

    def dump_of(self, job: Job, program: LoweredProgram, *, folder: Path) -> Kept:
        """The dump of `program`, compiled if the cache does not hold it.

        Of several processes that ask for one dump at a time, one compiles and the others wait.

        Raises:
          XlapipeError: as `compile_workload`, or the cache cannot be written.
        """
        job = replace(job, program=program)
        key = cache_key(job, program, folder)
        path = self.folder / key
        found = _read(path)
        if found is not None:
            with suppress(OSError):  # a cache that may only be read serves as well
                os.utime(path)
            return Kept(_as_asked(found, program), key, False)
        with self._locked(key):
            found = _read(path)
            if found is None:
                dump, _, files, _ = compile_dump(job, folder)
                write_dump(path, dump.manifest, files, fix=self.fix)
                self._forget()
                return Kept(open_dump(path), key, True)
        return Kept(_as_asked(found, program), key, False)

    def _forget(self) -> None:
        """Removes what nobody has asked for lately, so that the folder does not grow for ever."""
        oldest = time.time() - _KEPT_SECONDS
        for path in self.folder.iterdir():
            if is_dump(path) and path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        path = self.folder / "locks" / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise XlapipeError(
                f"cache {self.folder}: cannot be written: {error.strerror}; fix: {self.fix}"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # which gives the lock back


def cache_key(job: Job, program: LoweredProgram, folder: Path) -> str:
    """SHA-256 of all that decides about the dump of `program`, but for what is expected of it."""
    target = job.target
    packages = ("xlapipe", "jax", "jaxlib", *job.platform.compiler_packages)
    content: dict[str, Any] = {
        "program": replace(program, expectations=()).to_json(),
        "target": None if target is None else [target.name, target.description, target.config_text],
        "topology": str(job.topology),
        "policy": job.policy.value,
        "options": dict(job.options),
        "lock": None if job.lock is None else job.lock.to_bytes().decode(),
        "folder": str(folder),
        "schema": [SCHEMA_VERSION, FORM_VERSION],
        "versions": {name: _version(name) for name in packages},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(path: Path) -> Dump | None:
    """The dump; None where there is none, or a damaged one, which is then made again."""
    if not is_dump(path):
        return None
    try:
        return open_dump(path)
    except DumpError:
        return None


def _as_asked(dump: Dump, program: LoweredProgram) -> Dump:
    """A dump that was made earlier, with what is expected of it now."""
    return replace(dump, manifest=replace(dump.manifest, expectations=program.expectations))
