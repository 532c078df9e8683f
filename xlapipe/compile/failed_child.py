"""The errors of a compiling child: what it raised, or how it ended, with what to do about it."""

import re
import signal

from xlapipe.compile.job import Job
from xlapipe.compile.messages import (
    KERNELS_IN_LOG,
    LOCK_STAGE,
    TRACES_STAGE,
    ChildError,
)
from xlapipe.compile.xla_log import INFORMATION, last_pass
from xlapipe.devices.platforms import platform_named
from xlapipe.errors import (
    CompileError,
    DifferentTracesError,
    EndedBySignalError,
    ParameterError,
    TargetError,
    WorkloadError,
    XlapipeError,
)

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
_XLA_FIX = (
    "change what XLA's message names; where it names no part of the step, report it with the log"
)
_UNSLICED = "Slice not assigned"
_UNSLICED_FIX = "give XLA option xla_gpu_enable_dynamic_slice_fusion=False: that pass fails here"
_INSTALL_CUDNN = "; fix: install the wheel nvidia-cudnn-cu13: pip install 'xlapipe[cudnn]'"


class LockRefusedError(CompileError):
    """XLA raised an error or failed an internal check in a compile with predicted tuning."""


def crash(job: Job, code: int) -> CompileError:
    """The error of a compiling process that left no result.

    XLA and LLVM log a message and abort, or exit, where a check of theirs fails. Any other signal
    may be from outside, such as that of the kernel where memory is short, and shows nothing about
    the lock.
    """
    text = job.log_path.read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if not INFORMATION.match(line)]
    # LLVM's fatal errors are logged before a stack trace that starts with another fatal line.
    fatal = [line for line in lines if "LLVM Fatal Error" in line] or [
        line for line in lines if _FATAL_MESSAGE.search(line)
    ]
    last = (fatal or [line for line in lines if line])[-1:]
    shown = f": {last[0]:.300}" if last else ""
    if (begun := last_pass(text)) and begun[1]:
        shown += f"; in XLA's pass {begun[0]}"
    if fatal and "kernel" in last[0]:
        shown += _listed_kernels(text)
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
    return (LockRefusedError if is_refusal else error)(
        f"{job.reference.name}: the compiling process {ending}; the child's log is "
        f"{job.log_path}{shown}; fix: {fix}"
    )


def stopped(job: Job, used_bytes: int, *, limit_bytes: int) -> CompileError:
    where, change = "", ""
    if begun := last_pass(job.log_path.read_text(errors="replace")):
        where = f" {'in' if begun[1] else 'after'} XLA's pass {begun[0]}"
        change = ", or change the operations of that pass" if begun[1] else ""
    what, option = f"compiling took more than {job.timeout_seconds:g} s", "--timeout"
    if limit_bytes:
        what, option = f"compiling took more than {limit_bytes / 1e9:.1f} GB", "--child-memory"
    return CompileError(
        f"{job.reference.name}: {what} and was stopped{where}; the process had "
        f"{used_bytes / 1e9:.1f} GB, and where its threads were is in the child's log "
        f"{job.log_path}; fix: allow more with {option}{change}"
    )


def _import_fix(error: ChildError, module: str) -> str:
    """What to do where the import of `module` failed; empty for an error of the user's code."""
    missing = _MISSING_MODULE.match(error.message)
    if missing is not None:
        is_inside = f"{module}.".startswith(f"{missing[1]}.")
        run_in_folder = ", or run this in the folder that has it" if is_inside else ""
        return f"; fix: install {missing[1]}{run_in_folder}"
    if error.type == "SystemExit":
        return '; fix: put what ends the program below if __name__ == "__main__":'
    if "Workload.__init__()" in error.message:
        return "; fix: Workload(name=…, fn=step, args=(…)), a tree of shapes per argument"
    return ""


def error_of(job: Job, error: ChildError) -> XlapipeError:
    """The child's exception as an error that names the workload and the user's line."""
    reference, target = job.reference, job.target
    text = f"{error.type}: {error.message}" if error.type else error.message
    at = f"\n  at {error.frame}" if error.frame else ""
    if error.stage == "parameters":
        return ParameterError(text)
    if error.stage == TRACES_STAGE:
        return DifferentTracesError(f"{reference.name}: {text}")
    if not error.type and error.stage in ("import", "topology", "target", "lower"):
        # The message is complete, whether xlapipe or the user's code raised the XlapipeError.
        names_workload = str(reference) in text or f"workload {reference.name}:" in text
        named = text if names_workload else f"{reference.name}: {text}"
        return WorkloadError(named if ": raise " in at else f"{named}{at}")
    if error.stage == "import":
        # A registered name is followed by its module, except xlapipe's own, which alter a workload.
        is_registered = reference.name.partition("(")[0] != reference.target
        is_changed = reference.target.startswith("xlapipe.compile.lowering.")
        named = (
            f"{reference.name}: {reference}" if is_registered and not is_changed else reference.name
        )
        module = reference.target.partition(":")[0]
        return WorkloadError(f"{named} cannot be loaded: {text}{at}{_import_fix(error, module)}")
    if error.stage == "target" and target is None:
        return TargetError(
            f"no NVIDIA GPU is attached that jax can use: {text}; "
            "fix: compare `nvidia-smi`, or name a --target to compile without a GPU"
        )
    if error.stage == "target" and target is not None:
        compiler, fix = platform_named(target.platform).refusing_compiler
        return TargetError(f"target {target.name}: refused by {compiler}: {text}; {fix}")
    if error.stage == "lower":
        fix = _INSTALL_CUDNN if "cuDNN not found" in text else ""
        return WorkloadError(f"{reference.name}: lowering failed: {text}{at}{fix}")
    kind = LockRefusedError if error.stage == LOCK_STAGE else CompileError
    kernels = _listed_kernels(job.log_path.read_text(errors="replace"))
    fix = _XLA_OPTION_FIX if "No such compile option" in text else _XLA_FIX
    fix = _UNSLICED_FIX if _UNSLICED in text else fix
    if kernels and _ON_CHIP.search(text):
        fix = _ON_CHIP_FIX
    return kind(
        # XLA repeats the input that it rejected, which may be a whole kernel.
        f"{reference.name}: XLA did not compile it: {text:.600}{kernels}; the child's log is "
        f"{job.log_path}; fix: {fix}"
    )


def _listed_kernels(log: str) -> str:
    """The Pallas kernels that a child has listed in its log; empty without any."""
    lines = [line for line in log.splitlines() if line.startswith(KERNELS_IN_LOG)]
    listed = lines[-1].removeprefix(KERNELS_IN_LOG) if lines else ""
    return f"; the step's Pallas kernels: {listed:.600}" if listed else ""
