"""Compiles one workload for one target in a child process.

XLA's flags are process-wide, it reads the autotune file once per process, and it aborts on a
failed check. In a child process, each of these is one error that names a log.
"""

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import IO

from xlapipe.compile.compile_cache import CompileCache, compile_key
from xlapipe.compile.doctor import missing_to_compile
from xlapipe.compile.failed_child import LockRefusedError, crash, error_of, stopped
from xlapipe.compile.fork_server import ForkedChild, ServerOfEnvironment
from xlapipe.compile.job import Job
from xlapipe.compile.messages import ChildError, CompileRecord
from xlapipe.compile.reused_compiles import COMPILED_AT
from xlapipe.compile.user_environment import CPU_DEVICES, kept_variables
from xlapipe.compile.xla_log import LOGGED
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.compile.xla_patches.stand_ins import PLUGINS_VARIABLE
from xlapipe.devices.environment.scratch import Scratch
from xlapipe.errors import (
    CompileError,
    DumpError,
)
from xlapipe.files.typed_data import typed

# XLA distinguishes text from binary by the ending.
_LOADED = "autotune_results_loaded.pbtxt"
_TEMPORARY = "tmp"
_LOOK_SECONDS, _KILL_SECONDS = 0.5, 10.0
_START_CHILD = Path(__file__).with_name("_start_child.py")
_SERVER = ServerOfEnvironment()
_Child = subprocess.Popen[bytes] | ForkedChild
_SHARE = 0.9
_STACK_SECONDS = 2.0
_SIZES = re.compile(r"^Vm(?:RSS|Swap):\s+(\d+) kB$", re.MULTILINE)
_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


@contextmanager
def compile_workload(
    job: Job, *, folder: Path | None = None
) -> Iterator[tuple[Job, CompileRecord]]:
    """Compiles a job; yields it with the folder of its files, which are there in the context."""
    for check in missing_to_compile(platform=job.platform.name):
        raise CompileError(f"cannot compile: {check.problem}")
    scratch = Scratch()
    path, sources = scratch.path, folder or job.reference.folder or Path.cwd()
    job = replace(job, scratch=path, source_root=str(sources), started_seconds=time.monotonic())
    try:
        try:
            (path / _TEMPORARY).mkdir()
            record = _record(job, folder or Path.cwd())
        except OSError as error:
            raise CompileError(
                f"{job.reference.name}: {error.filename or path}: {error.strerror}; fix: free "
                "space there, or set TMPDIR to another folder"
            ) from None
        yield job, record
    except CompileError:
        if not _CHILDREN.is_stopping():
            scratch.keep()  # the message names the log
        raise
    except DumpError as error:
        scratch.keep()
        raise type(error)(f"{error}; the dump that cannot be read is kept in {path}") from None
    finally:
        scratch.close()


def _record(job: Job, folder: Path) -> CompileRecord:
    """The record of the compile, without autotune results if XLA refuses the predicted ones."""
    end = time.monotonic() + job.timeout_seconds  # of both attempts together
    try:
        return _run_child(job, folder, end)
    except LockRefusedError:
        if job.known_results is None:
            raise
    rmtree(job.dump_folder, ignore_errors=True)
    job.result_path.unlink(missing_ok=True)
    untuned = replace(job, known_results=None, started_seconds=time.monotonic())
    return replace(_run_child(untuned, folder, end), refused_tuning=True)


def _run_child(job: Job, folder: Path, end: float) -> CompileRecord:
    if job.target is None:  # an attached device, of which only a compile can tell
        job = replace(job, cache_folder=None)
    if job.program is not None and job.cache_folder is not None:
        key = compile_key(job, job.program, _environment(job))
        earlier = CompileCache(job.cache_folder).restore(key, job, job.program.arguments)
        if earlier is not None:
            COMPILED_AT.append(earlier.compiled_at)
            return replace(earlier, expectations=job.program.expectations)
        job = replace(job, cache_key=key)
    job_path = job.scratch / "job.json"
    job_path.write_bytes(job.to_bytes())
    code = _wait_for_child(job, folder, job_path, end)
    if code != 0 or not job.result_path.exists():
        raise crash(job, code)
    try:
        result = json.loads(job.result_path.read_bytes())
        error = typed(ChildError, result["error"]) if "error" in result else None
        record = typed(CompileRecord, result) if error is None else None
    except (TypeError, ValueError):
        raise CompileError(
            f"{job.reference.name}: the compiling process wrote a damaged result; the child's log "
            f"is {job.log_path}; fix: look whether the workload's module replaces functions of "
            "Python"
        ) from None
    if error is not None:
        raise error_of(job, error)
    assert record is not None
    COMPILED_AT.append(record.compiled_at)
    return record


def _wait_for_child(job: Job, folder: Path, job_path: Path, end: float) -> int:
    """Runs the child to its end and returns its exit code."""
    limit_bytes = job.child_memory_bytes or child_memory_limit()
    with job.log_path.open("wb") as log:
        child = _CHILDREN.started(lambda: _start(job, folder, _environment(job), job_path, log))
        try:
            while True:
                left_seconds = end - time.monotonic()
                used_bytes = memory_of(child.pid)
                if left_seconds <= 0 or used_bytes > limit_bytes:
                    _CHILDREN.refuse_if_stopping()
                    is_late = left_seconds <= 0
                    write_stacks(child.pid, job.log_path)
                    raise stopped(job, used_bytes, limit_bytes=0 if is_late else limit_bytes)
                with suppress(subprocess.TimeoutExpired):
                    return child.wait(min(_LOOK_SECONDS, left_seconds))
        finally:
            _CHILDREN.ended(child)


class Children:
    """The children of this process, which are ended together when it is interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Child] = set()
        self._stopping = 0

    def is_stopping(self) -> bool:
        return self._stopping > 0

    def refuse_if_stopping(self) -> None:
        """Raises CompileError if the children are being stopped."""
        if self.is_stopping():
            raise CompileError("interrupted")

    def started(self, start: "Callable[[], _Child]") -> "_Child":
        self.refuse_if_stopping()
        child = start()
        with self._lock:
            self._running.add(child)
            if not self.is_stopping():
                return child
        self.ended(child)
        raise CompileError("interrupted")

    def ended(self, child: "_Child") -> None:
        """Kills what is left of a child, and forgets it."""
        _kill_group(child)
        with suppress(subprocess.TimeoutExpired):  # the kernel has it, or its server is stopped
            child.wait(_KILL_SECONDS)
        with self._lock:
            self._running.discard(child)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Kills all children; none is started until the end of the block."""
        with self._lock:
            self._stopping += 1
            for child in self._running:
                _kill_group(child)
        _SERVER.stop()  # ends what waits for it to start
        try:
            yield
        finally:
            with self._lock:
                self._stopping -= 1


def _start(
    job: Job, folder: Path, environment: Mapping[str, str], job_path: Path, log: IO[bytes]
) -> _Child:
    """Starts the child: forked if this process compiles repeatedly, else as a new interpreter."""
    if job.target is not None:
        server = _SERVER.get(environment)
        if server is not None:
            try:
                return server.start(job_path, log=log, folder=folder, environment=environment)
            except OSError:
                _SERVER.discard()
    return subprocess.Popen(
        # -P: a folder `models` or `jax.py` of the user's must not shadow an installed one.
        [
            sys.executable,
            "-P",
            str(_START_CHILD),
            str(job_path),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def _environment(job: Job) -> dict[str, str]:
    """The parent's environment without variables that would change a plan unnoticed."""
    kept = {**kept_variables(os.environ), "TMPDIR": str(job.scratch / _TEMPORARY)}
    kept.pop("TEST_TMPDIR", None)  # XLA prefers it
    platform = job.platform
    kept.update(platform.child_environment)
    if (job.reference.arguments or {}).get("constants_as_arguments"):
        kept["JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS"] = "1"  # jax reads it when it is imported
    plugins = platform.plugins_with_stand_ins if job.target is not None else ()
    if plugins and XlaPatch.STAND_INS not in job.without_xla_patches:
        kept[PLUGINS_VARIABLE] = ",".join(plugins)
    if platform.has_autotuning:  # a GPU
        kept.update(LOGGED)
    # The CPU too: lowering computes there what a step computes while it is traced.
    kept["JAX_PLATFORMS"] = f"{platform.name},cpu" if job.target is None else "cpu"
    if job.target is None:
        # Preallocating a share of the memory would hide how much a step needs.
        kept["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if job.topology is not None:
        # For `jax.make_mesh` in the user's module.
        kept.setdefault(CPU_DEVICES, str(job.topology.device_count))
    # XLA reads these files once per process, so the flags have no effect as compiler options.
    if job.lock is not None:
        (job.scratch / _LOADED).write_text(job.lock.results, encoding="utf-8")
        kept["XLA_FLAGS"] = f"--{platform.load_autotune_flag}={job.scratch / _LOADED}"
    elif job.tune:
        kept["XLA_FLAGS"] = f"--{platform.dump_autotune_flag}={job.tuned_path}"
    return kept


def _kill_group(child: _Child) -> None:
    """Kills the child and the processes it started (ptxas)."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


_CHILDREN = Children()
children_stopped = _CHILDREN.stopped


def memory_of(process: int) -> int:
    """Bytes of memory that a process has, with what was swapped out; 0 if it has ended."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text(errors="replace")
        return 1024 * sum(map(int, _SIZES.findall(status)))
    return 0


def child_memory_limit() -> int:
    """Most of the memory that this machine or container has, in bytes."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # `max`
            sizes.append(int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")))
    return int(_SHARE * min(sizes))


def write_stacks(process: int, log: Path) -> None:
    """Appends the stacks of a compiling child and of this process to the child's log."""
    with suppress(OSError):
        size_bytes = log.stat().st_size
        os.kill(process, signal.SIGUSR1)  # see `xlapipe.compile.child`
        end = time.monotonic() + _STACK_SECONDS
        while log.stat().st_size == size_bytes and time.monotonic() < end:
            time.sleep(0.05)
        with log.open("a", encoding="utf-8") as stream:
            stream.write("\nxlapipe: the parent:\n")
            stream.flush()
            faulthandler.dump_traceback(stream)
