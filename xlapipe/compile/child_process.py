"""Compiles one workload for one target in a child process.

XLA's flags are process-wide, it reads the autotune file once per process, and it aborts on a
failed check. In a child process, each of these is one error that names a log.
"""

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
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import IO

from xlapipe.compile.doctor import missing_to_compile
from xlapipe.compile.fork_server import ForkedChild, ForkServers
from xlapipe.compile.job import Job, XlaOption
from xlapipe.compile.messages import (
    KERNEL_STAGE,
    KERNELS_IN_LOG,
    LOCK_STAGE,
    TRACES_STAGE,
    ChildError,
    CompileRecord,
    CompileRequest,
)
from xlapipe.compile.reused_compiles import ENDED_COMPILES
from xlapipe.compile.user_environment import CPU_DEVICES, kept_variables
from xlapipe.devices.environment.scratch import Scratch
from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.target import Target
from xlapipe.dump.dump import EXECUTABLE
from xlapipe.errors import (
    CompileError,
    DifferentTracesError,
    DumpError,
    EndedBySignalError,
    ParameterError,
    TargetError,
    WorkloadError,
    XlapipeError,
)
from xlapipe.files.writing import remove_left
from xlapipe.registry import WorkloadReference
from xlapipe.time.predicted_locks.predict import LeaveOut

# XLA distinguishes text from binary by the ending.
_LOADED, _TUNED = "autotune_results_loaded.pbtxt", "autotune_results_tuned.pbtxt"
_TUNING_LOGS = "autotune_logs.textproto"
_KNOWN = "known_results.jsonl"
_DUMP, _RESULT, _TEMPORARY = "dump", "result.json", "tmp"
_START_CHILD = Path(__file__).with_name("_start_child.py")
_SERVERS = ForkServers()
_Child = subprocess.Popen[bytes] | ForkedChild
# In a log of XLA (of either form) and of LLVM.
_FATAL_MESSAGE = re.compile(r"Check failed|^F\d{4} |^[\d: .-]+: F |LLVM ERROR:|LLVM Fatal Error")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")
_XLA_OPTION_FIX = "leave the option out, or correct its name in options= or compiler_options="
# On-chip memory in errors of a GPU's kernel, and of a TPU's.
_ON_CHIP = re.compile(r"(?i)shared memory|tensor memory|shared data|\b[vs]mem\b")
_ON_CHIP_FIX = (
    "give the kernel smaller blocks (BlockSpec), fewer stages (num_stages in its compiler_params) "
    "or narrower types: a block's operands must be in the chip's own memory at once"
)
_KERNEL_FIX = "change what the message names in that kernel, or its blocks and compiler_params"
_XLA_FIX = (
    "change what XLA's message names; where it names no part of the step, report it with the log"
)
_HASHABLE = "; fix: give a static argument that can be hashed, such as a tuple instead of a list"
_INSTALL_CUDNN = "; fix: install the wheel nvidia-cudnn-cu13: pip install 'xlapipe[cudnn]'"


@dataclass(frozen=True)
class Compiled:
    """The result of a compile; its files exist until the context of `compile_workload` ends.

    Attributes:
      dump_folder: XLA's own dump files.
      autotune_results: results of tuning on the attached GPU, as text; None without `tune`.
      tuning_logs: what the tuner measured, as text; None without `tune`.
      executable: in PJRT's serialised form; None without `serialize`.
      record: leaves, expectations, versions and XLA's own totals.
      folder: the folder that source paths are made relative to.
    """

    dump_folder: Path
    record: CompileRecord
    folder: Path
    autotune_results: str | None
    tuning_logs: str | None
    executable: bytes | None


@contextmanager
def compile_workload(job: Job, *, folder: Path | None = None) -> Iterator[Compiled]:
    """Compiles `job` and yields XLA's dump.

    Args:
      folder: where the child runs, and what source paths are made relative to. By default the
        current folder, and the folder that the workload is imported from.

    Raises:
      WorkloadError: the module does not import, or the function does not lower.
      TargetError: the target is refused, or no GPU is attached.
      CompileError: what compiling needs is missing, or XLA failed, crashed or took too long.
    """
    checks = missing_to_compile(platform=job.platform.name) if job.python is None else ()
    for check in checks:
        raise CompileError(f"cannot compile: {check.problem}")
    sources = folder or job.reference.folder or Path.cwd()
    scratch = Scratch()
    path = scratch.path
    try:
        (path / _TEMPORARY).mkdir()
        record = _record(job, folder or Path.cwd(), path)
        tuned, logs = (
            file.read_text(encoding="utf-8") if file.exists() else None
            for file in (path / _TUNED, path / _TUNING_LOGS)
        )
        executable = path / EXECUTABLE
        content = executable.read_bytes() if executable.exists() else None
        yield Compiled(path / _DUMP, record, sources, tuned, logs, content)
    except CompileError:
        if not _CHILDREN.is_stopping():
            scratch.keep()  # the message names the log
        raise
    except DumpError as error:
        scratch.keep()
        raise type(error)(f"{error}; the dump that cannot be read is kept in {path}") from None
    finally:
        scratch.close()


def _record(job: Job, folder: Path, scratch: Path) -> CompileRecord:
    """The record of the compile, with less of a predicted lock if XLA refuses the whole of it.

    Where the lock is refused, the program is compiled untuned next, so that an error that is not
    the lock's is raised after two compiles.
    """
    if job.known_results is None:
        return _run_child(job, folder, scratch)
    record = _attempt(job, folder, scratch)
    if record is not None:
        return record
    untuned = _run_child(replace(job, known_results=None), folder, scratch)
    dump, kept = scratch / _DUMP, scratch / "untuned"
    dump.rename(kept)
    for part in (LeaveOut.FUSED_TILES, LeaveOut.TILES, LeaveOut.NEAREST):
        record = _attempt(replace(job, leave_out=part), folder, scratch)
        if record is not None:
            return record
    kept.rename(dump)
    return untuned


def _attempt(job: Job, folder: Path, scratch: Path) -> CompileRecord | None:
    """The record of a compile with a predicted lock; None, and no dump, if XLA refused the lock.

    Raises:
      XlapipeError: the compile failed for another reason.
    """
    try:
        return _run_child(job, folder, scratch)
    except _LockRefusedError:
        rmtree(scratch / _DUMP, ignore_errors=True)
        (scratch / _RESULT).unlink(missing_ok=True)
        return None


class _LockRefusedError(CompileError):
    """XLA raised an error or failed an internal check in a compile with a predicted lock."""


def _run_child(job: Job, folder: Path, scratch: Path) -> CompileRecord:
    request_path, log_path = scratch / "request.json", scratch / "child.log"
    request = _request(job, scratch)
    request_path.write_text(json.dumps(request.to_json()), encoding="utf-8")
    if job.program is not None and request.program_path is not None:
        Path(request.program_path).write_text(json.dumps(job.program.to_json()), encoding="utf-8")
    if job.known_results is not None and request.known_results is not None:
        Path(request.known_results).write_text(job.known_results.lines, encoding="utf-8")
    code = _wait_for_child(job, folder, scratch, request_path, log_path)
    result_path = Path(request.result_path)
    if code != 0 or not result_path.exists():
        raise _crash(job, code, log_path)
    result = json.loads(result_path.read_text(encoding="utf-8"))
    if "error" in result:
        raise _error(job.reference, job.target, ChildError(**result["error"]), log_path)
    record = CompileRecord.from_json(result)
    ENDED_COMPILES.compiled_at.append(record.compiled_at)
    return record


def _request(job: Job, scratch: Path) -> CompileRequest:
    dump_options: dict[str, XlaOption] = {
        "xla_dump_to": str(scratch / _DUMP),
        "xla_dump_hlo_as_text": not job.plan_only or job.platform.plan_needs_texts,
        "xla_dump_hlo_as_proto": True,
    }
    if job.plan_only:
        dump_options.update(job.platform.plan_only_options)
    known = job.known_results.lines if job.known_results is not None else None
    return CompileRequest(
        reference=job.reference,
        program_path=str(scratch / "program.json") if job.program is not None else None,
        shared_lowering=str(job.shared_lowering) if job.shared_lowering is not None else None,
        cache_folder=_cache_folder(job),
        lock_sha256=sha256(job.lock.to_bytes()).hexdigest() if job.lock is not None else None,
        platform=job.platform.name,
        target_config=job.target.config_text if job.target is not None else None,
        topology=str(job.topology) if job.topology is not None else None,
        options={**job.policy_options, **job.options, **dump_options},
        locked=job.lock is not None,
        known_results=str(scratch / _KNOWN) if known is not None else None,
        known_sha256=sha256(known.encode()).hexdigest() if known is not None else None,
        leave_out=job.leave_out,
        without_xla_patches=tuple(sorted(job.without_xla_patches)),
        executable_path=str(scratch / EXECUTABLE) if job.serialize else None,
        result_path=str(scratch / _RESULT),
        started_seconds=time.monotonic(),
        memory_limit_bytes=job.memory_limit_bytes,
        workspaces=job.lock.workspaces if job.lock is not None and job.target is not None else {},
    )


def _cache_folder(job: Job) -> str | None:
    """None for what only a compile can tell: of an attached device, and in a particular process."""
    if job.cache_folder is None or job.target is None or job.process is not None:
        return None
    return str(job.cache_folder)


def _wait_for_child(
    job: Job, folder: Path, scratch: Path, request_path: Path, log_path: Path
) -> int:
    """Runs the child to its end and returns its exit code.

    Raises:
      CompileError: it took too long.
    """
    with log_path.open("wb") as log:
        child = _CHILDREN.started(
            lambda: _start(job, folder, _environment(job, scratch), request_path, log)
        )
        try:
            return child.wait(job.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"{job.reference.name}: compiling took more than {job.timeout_seconds:g} s and was "
                f"stopped; the child's log is {log_path}; fix: allow more with --timeout"
            ) from None
        finally:
            _CHILDREN.ended(child)
            if job.cache_folder is not None:
                remove_left(job.cache_folder)


class Children:
    """The children of this process, which are ended together when it is interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Child] = set()
        self._stopping = 0

    def is_stopping(self) -> bool:
        """Whether the children are being stopped."""
        return self._stopping > 0

    def started(self, start: "Callable[[], _Child]") -> "_Child":
        """Starts a child.

        Raises:
          CompileError: the children are being stopped.
        """
        if self.is_stopping():
            raise CompileError("interrupted")
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
        child.wait()
        with self._lock:
            self._running.discard(child)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Kills all children; none is started until the end of the block."""
        with self._lock:
            self._stopping += 1
            for child in self._running:
                _kill_group(child)
        _SERVERS.discard()  # ends what waits for it to start
        try:
            yield
        finally:
            with self._lock:
                self._stopping -= 1


def _start(
    job: Job, folder: Path, environment: Mapping[str, str], request_path: Path, log: IO[bytes]
) -> _Child:
    """Starts the child: forked if this process compiles repeatedly, else as a new interpreter."""
    if job.python is None and job.target is not None and job.process is None:
        server = _SERVERS.for_environment(environment)
        if server is not None:
            try:
                return server.start(request_path, log=log, folder=folder, environment=environment)
            except OSError:
                _SERVERS.discard()
    return subprocess.Popen(
        # -P: a folder `models` or `jax.py` of the user's must not shadow an installed one.
        [
            str(job.python or sys.executable),
            "-P",
            str(_START_CHILD),
            str(request_path),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def _environment(job: Job, scratch: Path) -> dict[str, str]:
    """The parent's environment without variables that would change a plan unnoticed."""
    kept = {**kept_variables(os.environ), "TMPDIR": str(scratch / _TEMPORARY)}
    kept.pop("TEST_TMPDIR", None)  # XLA prefers it
    if job.python is not None:
        # Variables that lead this interpreter to its packages must not affect the other one.
        kept = {name: value for name, value in kept.items() if not name.startswith("PYTHON")}
        kept["PYTHONNOUSERSITE"] = "1"
    if job.process is not None:
        kept["PYTHONHASHSEED"] = str(job.process.hash_seed)
        kept["XLAPIPE_COMPILE_THREADS"] = str(job.process.threads)
    platform = job.platform
    kept.update(platform.child_environment)
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
        (scratch / _LOADED).write_text(job.lock.results, encoding="utf-8")
        kept["XLA_FLAGS"] = f"--{platform.load_autotune_flag}={scratch / _LOADED}"
    elif job.tune:
        kept["XLA_FLAGS"] = (
            f"--{platform.dump_autotune_flag}={scratch / _TUNED} "
            f"--{platform.tuning_logs_flag}={scratch / _TUNING_LOGS}"
        )
    return kept


def _kill_group(child: _Child) -> None:
    """Kills the child and the processes it started (ptxas)."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


_CHILDREN = Children()
children_stopped = _CHILDREN.stopped


def _crash(job: Job, code: int, log_path: Path) -> CompileError:
    """The error of a compiling process that left no result.

    XLA and LLVM log a message and abort, or exit, where a check of theirs fails. Any other signal
    may be from outside, such as that of the kernel where memory is short, and shows nothing about
    the lock.
    """
    lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines()]
    # LLVM's fatal errors are logged before a stack trace that starts with another fatal line.
    fatal = [line for line in lines if "LLVM Fatal Error" in line] or [
        line for line in lines if _FATAL_MESSAGE.search(line)
    ]
    last = (fatal or [line for line in lines if line])[-1:]
    shown = f": {last[0]:.300}" if last else ""
    kernels = [line for line in lines if line.startswith(KERNELS_IN_LOG)]
    if fatal and kernels and "kernel" in last[0]:
        shown += f"; the step's Pallas kernels: {kernels[-1].removeprefix(KERNELS_IN_LOG):.600}"
    fix = "where the log shows no mistake of the step, please report it"
    ending = f"ended with exit code {code} and without a result"
    if code < 0:
        ending = f"was ended by {signal.Signals(-code).name}"
        if -code != signal.SIGABRT:
            fix = "compile again, with fewer --jobs where memory is short; "
            fix += "if it ends so each time, please report it with the log"
    ended_itself = code > 0 or -code == signal.SIGABRT
    is_refusal = job.known_results is not None and fatal and ended_itself
    error = EndedBySignalError if code < 0 else CompileError
    return (_LockRefusedError if is_refusal else error)(
        f"{job.reference.name}: the compiling process {ending}; the child's log is "
        f"{log_path}{shown}; fix: {fix}"
    )


def _import_fix(error: ChildError, module: str) -> str:
    """What to do where the import of `module` failed; empty for an error of the user's code."""
    missing = _MISSING_MODULE.match(error.message)
    if missing is not None:
        own = f"{module}.".startswith(f"{missing[1]}.")
        here = ", or run this in the folder that has it" if own else ""
        return f"; fix: install {missing[1]}{here}"
    if "Workload.__init__()" in error.message:
        return "; fix: Workload(name=…, fn=step, args=(…)), a tree of shapes per argument"
    return ""


def _error(
    reference: WorkloadReference, target: Target | None, error: ChildError, log_path: Path
) -> XlapipeError:
    """The child's exception as an error that names the workload and the user's line."""
    text = f"{error.type}: {error.message}" if error.type else error.message
    at = f"\n  at {error.frame}" if error.frame else ""
    if error.stage == "parameters":
        return ParameterError(text)
    if error.stage == TRACES_STAGE:
        return DifferentTracesError(f"{reference.name}: {text}")
    if not error.type and error.stage in ("import", "topology", "target", "lower"):
        # The message is complete, whether xlapipe or the user's code raised the XlapipeError.
        own = str(reference) in text or f"workload {reference.name}:" in text
        named = text if own else f"{reference.name}: {text}"
        return WorkloadError(named if ": raise " in at else f"{named}{at}")
    if error.stage == "import":
        # A registered name is followed by its module, except xlapipe's own, which alter a workload.
        is_registered = reference.name.partition("(")[0] != reference.target
        own = reference.target.startswith("xlapipe.compile.lowering.")
        named = f"{reference.name}: {reference}" if is_registered and not own else reference.name
        module = reference.target.partition(":")[0]
        return WorkloadError(f"{named} cannot be loaded: {text}{at}{_import_fix(error, module)}")
    if error.stage == "target" and target is None:
        return TargetError(
            f"no NVIDIA GPU is attached that jax can use: {text}; "
            "fix: run `xlapipe doctor`, or name a --target to compile without a GPU"
        )
    if error.stage == "target" and target is not None:
        compiler, fix = platform_named(target.platform).refusing_compiler
        return TargetError(f"target {target.name}: refused by {compiler}: {text}; {fix}")
    if error.stage == "lower":
        fix = _INSTALL_CUDNN if "cuDNN not found" in text else ""
        fix = _HASHABLE if "Non-hashable static arguments" in text else fix
        return WorkloadError(f"{reference.name}: lowering failed: {text}{at}{fix}")
    if error.stage == KERNEL_STAGE:
        fix = _ON_CHIP_FIX if _ON_CHIP.search(error.message) else _KERNEL_FIX
        return CompileError(
            f"{reference.name}: XLA did not compile {error.message}; the child's log is "
            f"{log_path}; fix: {fix}"
        )
    kind = _LockRefusedError if error.stage == LOCK_STAGE else CompileError
    return kind(
        # XLA repeats the input that it rejected, which may be a whole kernel.
        f"{reference.name}: XLA did not compile it: {text:.600}; the child's log is {log_path}"
        f"; fix: {_XLA_OPTION_FIX if 'No such compile option' in text else _XLA_FIX}"
    )
