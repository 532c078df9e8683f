"""Compiles one workload for one target in a child process.

XLA's flags are process-wide, it reads the autotune file once per process, and it aborts on a
failed check: a child of its own makes each of these an error with a log, and nothing more.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from xlapipe.dumps.autotune_lock import AutotuneLock
from xlapipe.dumps.dump import EXECUTABLE
from xlapipe.environment.doctor import missing_to_compile
from xlapipe.errors import (
    CompileError,
    ParameterError,
    TargetError,
    WorkloadError,
    XlapipeError,
)
from xlapipe.lowering.lowered_program import LoweredProgram
from xlapipe.registry import WorkloadReference
from xlapipe.targets.target import Target
from xlapipe.targets.topology import Topology

DEFAULT_TIMEOUT_SECONDS = 600
# XLA tells text from binary by the ending.
_LOADED, _TUNED = "autotune_results_loaded.pbtxt", "autotune_results_tuned.pbtxt"
_CHILD = Path(__file__).with_name("_child.py")


XlaOption = str | bool | int | float


class GemmPolicy(StrEnum):
    """Which matrix-product backends XLA may choose from.

    `auto` leaves XLA's defaults; `cublas` takes Triton away; `triton` takes cuBLAS away.
    """

    AUTO = "auto"
    CUBLAS = "cublas"
    TRITON = "triton"

    @property
    def options(self) -> Mapping[str, bool]:
        """The XLA options that make the policy."""
        if self is GemmPolicy.CUBLAS:
            return {"xla_gpu_enable_triton_gemm": False}
        if self is GemmPolicy.TRITON:
            return {
                "xla_gpu_enable_triton_gemm": True,
                "xla_gpu_triton_gemm_any": True,
                "xla_gpu_cublas_fallback": False,
            }
        return {}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One compile to do.

    Attributes:
      reference: where the workload is defined; names it in messages.
      program: the workload as lowered elsewhere; None where the child imports and lowers it.
      target: None stands for the attached GPU.
      lock: autotune results to be used in place of tuning.
      tune: keep the results of the attached GPU's autotuning.
      serialize: keep the executable too.
      plan_only: dump no more than the plan, and leave out what changes no plan: texts, and the
        optimisation of generated code, which comes after buffer assignment.
      topology: hosts and GPUs to compile for; None for as many as the workload's mesh asks for.
      options: XLA options beyond those of the workload and of the policy, which they override.
      python: the interpreter to compile with, of an environment that holds another jax; None
        for this one.
    """

    reference: WorkloadReference
    target: Target | None
    program: LoweredProgram | None = None
    policy: GemmPolicy = GemmPolicy.AUTO
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    lock: AutotuneLock | None = None
    tune: bool = False
    serialize: bool = False
    plan_only: bool = False
    topology: Topology | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict, hash=False)
    python: Path | None = None


@dataclass(frozen=True)
class Compiled:
    """What the child left behind; valid until the context of `compile_workload` ends.

    Attributes:
      dump_folder: XLA's own dump files.
      autotune_results: what tuning on the attached GPU found, as text; None without `tune`.
      executable: PJRT's serialisation; None without `serialize`.
      record: the child's result: leaves, expectations, versions, memory_analysis.
      folder: the folder that source paths are made relative to.
    """

    dump_folder: Path
    record: Mapping[str, Any]
    folder: Path
    autotune_results: str | None
    executable: bytes | None

    @property
    def stage_seconds(self) -> Mapping[str, float]:
        """Wall time of the child by stage: `load` (Python, jax, the module), `lower`, `compile`."""
        seconds: Mapping[str, float] = self.record["seconds"]
        return seconds


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
    for check in missing_to_compile() if job.python is None else ():
        raise CompileError(f"cannot compile: {check.problem}")
    sources = folder or job.reference.folder or Path.cwd()
    scratch = Path(tempfile.mkdtemp(prefix="xlapipe-"))
    keep = False
    try:
        record = _run_child(job, folder or Path.cwd(), scratch)
        results = scratch / _TUNED
        tuned = results.read_text(encoding="utf-8") if results.exists() else None
        executable = scratch / EXECUTABLE
        content = executable.read_bytes() if executable.exists() else None
        yield Compiled(scratch / "dump", record, sources, tuned, content)
    except CompileError:
        keep = True  # the message names the log
        raise
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)


def _run_child(job: Job, folder: Path, scratch: Path) -> Mapping[str, Any]:
    reference, target = job.reference, job.target
    request_path, result_path = scratch / "request.json", scratch / "result.json"
    log_path, program_path = scratch / "child.log", scratch / "program.json"
    dump_options: dict[str, XlaOption] = {
        "xla_dump_to": str(scratch / "dump"),
        "xla_dump_hlo_as_text": not job.plan_only,
        "xla_dump_hlo_as_proto": True,
    }
    if job.plan_only:
        dump_options["xla_backend_optimization_level"] = 0
    request = {
        "reference": reference.to_json(),
        "program": str(program_path) if job.program is not None else None,
        "target_config": target.config_text if target is not None else None,
        "topology": str(job.topology) if job.topology is not None else None,
        "options": {**job.policy.options, **job.options, **dump_options},
        "locked": job.lock is not None,
        "executable": str(scratch / EXECUTABLE) if job.serialize else None,
        "result": str(result_path),
        "started": time.monotonic(),
    }
    request_path.write_text(json.dumps(request), encoding="utf-8")
    if job.program is not None:
        program_path.write_text(json.dumps(job.program.to_json()), encoding="utf-8")
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            # -P: a folder `models` or `jax.py` of the user's must not shadow an installed one.
            [str(job.python or sys.executable), "-P", str(_CHILD), str(request_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(job, scratch),
            start_new_session=True,
        )
        try:
            code = child.wait(job.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"{reference.name}: compiling took more than {job.timeout_seconds:g} s and was "
                f"stopped; the child's log is {log_path}; allow more with --timeout"
            ) from None
        finally:
            _kill_group(child)
    if code != 0 or not result_path.exists():
        raise CompileError(
            f"{reference.name}: the compiling process {_ending(code)}; the child's log is "
            f"{log_path}{_last_words(log_path)}"
        )
    record: Mapping[str, Any] = json.loads(result_path.read_text(encoding="utf-8"))
    if "error" in record:
        raise _error(reference, target, record["error"], log_path)
    return record


def _environment(job: Job, scratch: Path) -> dict[str, str]:
    """The parent's environment without what would change a plan behind the user's back."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") and not name.startswith("JAX_")
    }
    if job.python is not None:
        # What leads this interpreter to its packages must not lead the other one there.
        kept = {name: value for name, value in kept.items() if not name.startswith("PYTHON")}
        kept["PYTHONNOUSERSITE"] = "1"
    kept["JAX_PLATFORMS"] = "cuda" if job.target is None else "cpu"
    if job.target is None:
        # Half the memory taken in advance would hide what a step needs.
        kept["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # Read once per process, so that they are no use among the compiler options.
    if job.lock is not None:
        (scratch / _LOADED).write_text(job.lock.results, encoding="utf-8")
        kept["XLA_FLAGS"] = f"--xla_gpu_load_autotune_results_from={scratch / _LOADED}"
    elif job.tune:
        kept["XLA_FLAGS"] = f"--xla_gpu_dump_autotune_results_to={scratch / _TUNED}"
    return kept


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    """Ends the child and what it started (ptxas), whichever way the wait ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code} and no result"


def _last_words(log_path: Path) -> str:
    """The log's last line that says something, behind a colon."""
    lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines()]
    fatal = [line for line in lines if "Check failed" in line or line.startswith("F")]
    said = (fatal or [line for line in lines if line])[-1:]
    return f": {said[0]:.300}" if said else ""


def _error(
    reference: WorkloadReference, target: Target | None, error: Mapping[str, Any], log_path: Path
) -> XlapipeError:
    kind = f"{error['type']}: " if error["type"] else ""
    text = f"{kind}{error['message']}"
    at = f"\n  at {error['frame']}" if error["frame"] else ""
    if error["stage"] == "parameters":
        return ParameterError(text)
    if not error["type"] and error["stage"] in ("import", "topology", "target", "lower"):
        # An error of ours, or of the user's in our words: it is complete, whoever raised it.
        named = text if str(reference) in text else f"{reference.name}: {text}"
        return WorkloadError(named if ": raise " in at else f"{named}{at}")
    if error["stage"] == "import":
        return WorkloadError(f"{reference.name}: {reference} cannot be loaded: {text}{at}")
    if error["stage"] == "target" and target is None:
        return TargetError(
            f"no NVIDIA GPU is attached that jax can use: {text}; "
            "`xlapipe doctor` says what is missing; for a GPU that is not here, name a --target"
        )
    if error["stage"] == "target":
        return TargetError(
            f"target {target.name if target else ''}: refused by this jaxlib: {text}; "
            "was the config written for a newer jaxlib?"
        )
    if error["stage"] == "lower":
        return WorkloadError(f"{reference.name}: lowering failed: {text}{at}")
    return CompileError(
        # XLA repeats what it could not read, which may be a whole kernel.
        f"{reference.name}: XLA did not compile it: {text:.600}; the child's log is {log_path}"
    )
