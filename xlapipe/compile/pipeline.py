"""From a Job to a dump on disk: compile, capture, normal form, write."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from xlapipe.compile.capture import capture
from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.job import Job
from xlapipe.compile.workers import error_of, submit, workers
from xlapipe.devices.platforms import platform_named
from xlapipe.dump.dump import (
    Dump,
    is_dump,
    read_manifest,
    refuse_other_files,
    write_dump,
    write_manifest,
)
from xlapipe.dump.manifest import Manifest, with_digests
from xlapipe.dump.normal_form.plan import (
    NormalForm,
    compare,
    differences,
    normal_form,
    read_normal_form,
)
from xlapipe.dump.run_record import RUN_RECORD
from xlapipe.dump.same_dump import notes_if_same, write_lines
from xlapipe.errors import CompileError, WorkloadError, XlapipeError
from xlapipe.plans import Instruction
from xlapipe.plans.wording import counted
from xlapipe.registry import find_workload

Outcome = TypeVar("Outcome")
Kept = TypeVar("Kept")
# Characters of a call that a folder name must not have.
_UNSAFE = re.compile(r"[^\w.=,+-]+")
_LONGEST_ARGUMENTS = 80
_LAST, _LOOK_SECONDS = object(), 0.1


@dataclass(frozen=True)
class CompiledDump:
    """A dump that was compiled, and perhaps written.

    Attributes:
      files: contents by name, including the normal form.
      stage_seconds: wall time of the child's stages; see `CompileRecord`.
      seconds: wall time of the whole compile.
      compiled_at: when, if the result is from the cache.
      changed: False if the folder already held this dump.
      notes: what differs from the dump in the folder without being a change.
    """

    dump: Dump
    normal: NormalForm
    files: dict[str, bytes]
    stage_seconds: Mapping[str, float]
    seconds: float
    compiled_at: str | None = None
    changed: bool = True
    notes: tuple[str, ...] = ()


def dump_folder(out: Path, manifest: Manifest) -> Path:
    """`<out>/<workload>/<target>[-<topology>]-<gemm policy>[-tuned]-jax<jaxlib version>`.

    Arguments of the workload's function follow its name: `gpt-remat=True`.
    The version of the compiler follows where it is not jaxlib's, as for TPUs. Extra options add a
    digest, and patches of XLA that are switched off their names, so that a dump with them has its
    own folder.
    """
    tuned = "-tuned" if manifest.tuned else ""
    if manifest.predicted_lock is not None:
        tuned = "-predicted"
    device = manifest.device.replace(" ", "-")
    label = f"{device}-{manifest.gemm_policy}{tuned}-jax{manifest.versions['jaxlib']}"
    compiler = platform_named(manifest.platform).own_compiler
    if compiler in manifest.versions:
        label += f"-{compiler.removeprefix('jax-')}{manifest.versions[compiler]}"
    if manifest.extra_options:
        text = json.dumps(dict(manifest.extra_options), sort_keys=True)
        label += f"-options-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    for name in manifest.without_xla_patches:
        label += f"-without-{name}"
    _, bracket, arguments = manifest.compiled_name.partition("(")
    given = _UNSAFE.sub("_", arguments.removesuffix(")").replace(", ", ","))
    if len(given) > _LONGEST_ARGUMENTS:
        given = hashlib.sha256(given.encode()).hexdigest()[:8]
    return (
        out / (f"{manifest.workload}-{given}" if bracket and given else manifest.workload) / label
    )


def make_dump(job: Job, out: Path, *, folder: Path | None = None) -> CompiledDump:
    """Compiles a job and writes the dump below `out`.

    A folder that holds the same dump stays, except for source lines. So does one made on a
    device: a compile without the device must have the same normal form.
    """
    return keep_dump(job, compile_dump(job, folder, allow_refused=True), out)


def keep_dump(job: Job, compiled: CompiledDump, out: Path) -> CompiledDump:
    """Writes the dump of a job below `out`, as `make_dump`."""
    path = dump_folder(out, compiled.dump.manifest)
    _refuse_to_replace_another(path, job)
    if job.target is None or not is_dump(path):
        return write_new(compiled, path)
    notes: tuple[str, ...] | None
    if (path / RUN_RECORD).exists():
        golden = read_normal_form(path)
        lines = differences(golden, compiled.normal, name=str(path))
        if lines:
            raise XlapipeError(
                "\n".join(lines) + f"\n{path}: was made on the device, and the plan compiled here "
                "differs; fix: make it again on the device with --target attached --tuning tune"
            )
        _update_devices_manifest(path, compiled)
        notes = compare(golden, compiled.normal).notes
    else:
        notes = notes_if_same(path, compiled.dump.manifest, compiled.files, compiled.normal)
        if notes is None:
            return write_new(compiled, path)
    write_lines(path, compiled.files)
    dump = replace(compiled.dump, path=path)
    return replace(compiled, dump=dump, changed=False, notes=notes)


def _refuse_to_replace_another(path: Path, job: Job) -> None:
    """Refuses to write where other files are, or another step whose workload has the same name."""
    refuse_other_files(path)
    if not is_dump(path):
        return
    earlier = read_manifest(path, check_files=False).compiled_name
    known = _definition(earlier)
    if known is not None and known != str(job.reference) and earlier != job.reference.name:
        raise XlapipeError(
            f"{path}: holds the dump of {earlier}, whose workload has the same name as that of "
            f"{job.reference.name}; fix: give one of the workloads another name, or this dump "
            "another folder with --out"
        )


def _definition(name: str) -> str | None:
    """`module:attribute(arguments)` of what a user named; None if that is unknown now."""
    try:
        return str(find_workload(name))
    except WorkloadError:
        return None


def _update_devices_manifest(path: Path, compiled: CompiledDump) -> None:
    """Writes what is known of kernels and loops now; the device's files stay as they are."""
    compiled_manifest = compiled.dump.manifest
    manifest = replace(
        read_manifest(path, check_files=False),
        stated_costs=compiled_manifest.stated_costs,
        stated_trips=compiled_manifest.stated_trips,
        kernel_codes=compiled_manifest.kernel_codes,
    )
    write_manifest(path, manifest)


def build(job: Job, path: Path, *, folder: Path | None = None) -> CompiledDump:
    """Compiles a job and writes dump and executable into the folder `path`."""
    if not job.platform.builds_executables:
        raise XlapipeError(
            f"{job.reference.name}: executables are built for NVIDIA GPUs only; fix: use `xlapipe "
            "dump` for the plan, or choose a GPU with --target"
        )
    refuse_other_files(path)
    if job.known_results is not None:
        raise XlapipeError(
            f"{job.reference.name}: predicted tuning is for plans, since the device may refuse "
            "what it names; fix: leave --tuning out, or give a device's lock: --tuning FILE"
        )
    compiled = compile_dump(replace(job, serialize=True), folder)
    _refuse_unloadable_calls(compiled.dump, on_device=job.target is None)
    return write_new(compiled, path)


def _refuse_unloadable_calls(dump: Dump, *, on_device: bool) -> None:
    """Refuses an executable with calls that fail when it is loaded or run."""
    plan, name = dump.plan, dump.manifest.workload
    if calls := plan.host_callbacks:
        raise XlapipeError(
            f"{name}: the step calls back into Python on the host ({_sources(calls)}), and an "
            "executable built here cannot; fix: remove the callbacks (jax.debug.print, "
            "io_callback, pure_callback) from the step that is built"
        )
    if not on_device and (calls := plan.calls_finished_on_device):
        raise XlapipeError(
            f"{name}: the step calls cuDNN attention ({_sources(calls)}), which XLA "
            "compiles only where the GPU is attached; fix: build it on the GPU with --target "
            "attached, or use another implementation than 'cudnn' in the step that is built"
        )
    if not on_device and (untuned := plan.untuned_calls):
        raise XlapipeError(
            f"{name}: {counted(len(untuned), 'convolution')} of cuDNN without an algorithm (first "
            f"at {untuned[0].source or untuned[0].name}): the executable would fail on the GPU "
            "with CUDNN_STATUS_BAD_PARAM; fix: give the GPU's autotune results with "
            "--tuning FILE (`xlapipe dump … --target attached --tuning tune` on the GPU "
            "writes them), or build it on the GPU with --target attached"
        )


def _sources(calls: Sequence[Instruction]) -> str:
    return ", ".join(str(call.source or call.name) for call in calls)


def refusal(manifest: Manifest) -> str:
    """The error for a plan that XLA refused."""
    return (
        f"{manifest.workload}: does not fit {manifest.target_description}: {manifest.refused:.600}"
        "; fix: `xlapipe fit` finds sizes that do, `xlapipe choose` changes that need less"
    )


def compile_dump(job: Job, folder: Path | None, *, allow_refused: bool = False) -> CompiledDump:
    """Compiles a job; writes no dump."""
    started = time.monotonic()
    with compile_workload(job, folder=folder) as (started_job, record):
        dump, files = capture(started_job, record, where=job.reference.name)
        if dump.manifest.refused is not None and not allow_refused:
            raise CompileError(refusal(dump.manifest))
    normal = normal_form(dump, files)
    files = {**files, **normal.files()}
    dump = replace(dump, facts=with_digests(dump.manifest, files))
    seconds = time.monotonic() - started
    return CompiledDump(dump, normal, files, record.seconds, seconds, record.compiled_at)


def write_new(compiled: CompiledDump, path: Path) -> CompiledDump:
    """Writes a dump into a folder."""
    write_dump(path, compiled.dump.manifest, compiled.files)
    return replace(compiled, dump=replace(compiled.dump, path=path))


def make_dumps(
    jobs: Sequence[Job],
    out: Path,
    *,
    at_once: int,
    on_done: Callable[[Job, CompiledDump | XlapipeError], None],
    scheduler: str | None = None,
) -> None:
    """Compiles `jobs` and writes their dumps below `out`, as `run_jobs`."""

    def keep(job: Job, compiled: CompiledDump) -> CompiledDump:
        return keep_dump(job, compiled, out)

    work = partial(compile_dump, folder=None, allow_refused=True)
    run_jobs(jobs, work, keep, at_once=at_once, on_done=on_done, scheduler=scheduler)


def run_jobs(
    jobs: Iterable[Job | None],
    work: Callable[[Job], Outcome],
    keep: Callable[[Job, Outcome], Kept],
    *,
    at_once: int,
    on_done: Callable[[Job, Kept | XlapipeError], None],
    scheduler: str | None = None,
) -> None:
    """Calls `work` for every job, in threads or on the workers of a cluster.

    Args:
      jobs: each is taken when a thread is free for it, and may depend on the results so far. None
        states that there will be more, but not yet.
    """
    waiting, has_more = iter(jobs), True
    with workers(at_once, scheduler) as pool:
        running: dict[Future[Outcome], Job] = {}
        try:
            while running or has_more:
                while has_more and (scheduler is not None or len(running) < at_once):
                    job = next(waiting, _LAST)
                    if job is None:
                        break
                    if isinstance(job, Job):
                        running[submit(pool, scheduler, work, job)] = job
                    else:
                        has_more = False
                seconds = _LOOK_SECONDS if has_more else None
                done, _ = wait(running, timeout=seconds, return_when=FIRST_COMPLETED)
                for future in done:
                    job = running.pop(future)
                    on_done(job, _kept(job, future, keep))
        finally:
            for future in running:
                future.cancel()


def _kept(
    job: Job, future: Future[Outcome], keep: Callable[[Job, Outcome], Kept]
) -> Kept | XlapipeError:
    error = error_of(future, job)
    if error is not None:
        return error
    try:
        return keep(job, future.result())
    except XlapipeError as failure:
        return failure
