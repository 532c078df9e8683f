"""Workload to Dump, start to finish: compile, capture, normal form, write."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from xlapipe.compiling.capture import capture
from xlapipe.compiling.child_process import compile_workload
from xlapipe.compiling.job import Job
from xlapipe.dumps.dump import Dump, is_dump, write_dump
from xlapipe.dumps.manifest import Manifest, with_digests
from xlapipe.dumps.normal_plan import NormalForm, differences, normal_form, read_normal_form
from xlapipe.dumps.run_record import RUN_RECORD
from xlapipe.errors import XlapipeError

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Made:
    """A dump that was made.

    Attributes:
      path: where it lies.
      files: contents by name, the normal form among them.
      changed: False if the folder held this dump before.
      seconds: wall time of the whole job.
      stage_seconds: of the child's stages; see `CompileRecord`.
    """

    dump: Dump
    normal: NormalForm
    files: dict[str, bytes]
    changed: bool
    seconds: float
    stage_seconds: Mapping[str, float]


def dump_folder(out: Path, manifest: Manifest) -> Path:
    """`<out>/<workload>/<target>[-<topology>]-<gemm policy>[-tuned]-jax<jaxlib version>`.

    With extra options a digest of them follows, so that a dump never lies where one without would.
    """
    tuned = "-tuned" if manifest.tuned else ""
    device = manifest.device.replace(" ", "-")
    label = f"{device}-{manifest.gemm_policy}{tuned}-jax{manifest.versions['jaxlib']}"
    if manifest.extra_options:
        text = json.dumps(dict(manifest.extra_options), sort_keys=True)
        label += f"-options-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return out / manifest.workload / label


def make_dump(job: Job, out: Path, *, folder: Path | None = None) -> Made:
    """Compiles, and writes the dump below `out`.

    A dump that a device wrote is not written over by a machine without one: there the new dump
    must have the same normal form.

    Raises:
      XlapipeError: nothing was written then.
    """
    started = time.monotonic()
    dump, normal, files, stages = compile_dump(job, folder)
    path = dump_folder(out, dump.manifest)
    if job.target is not None and (path / RUN_RECORD).exists():
        found = differences(read_normal_form(path), normal, name=str(path))
        if found:
            raise XlapipeError(
                "\n".join(found) + f"\n{path}: written on the device itself, and this machine's "
                "plan differs: make it again there, with --target attached --tune"
            )
        changed = False
    else:
        changed = write_dump(path, dump.manifest, files)
    seconds = time.monotonic() - started
    return Made(replace(dump, path=path), normal, files, changed, seconds, stages)


def build(job: Job, path: Path, *, folder: Path | None = None) -> Made:
    """Compiles, and writes dump and executable into the folder `path` itself.

    Raises:
      XlapipeError: nothing was written then.
    """
    started = time.monotonic()
    if path.exists() and not is_dump(path) and (path.is_file() or any(path.iterdir())):
        raise XlapipeError(f"{path}: holds something else; name a new folder with --out")
    dump, normal, files, stages = compile_dump(replace(job, serialize=True), folder)
    changed = write_dump(path, dump.manifest, files)
    seconds = time.monotonic() - started
    return Made(replace(dump, path=path), normal, files, changed, seconds, stages)


def compile_dump(
    job: Job, folder: Path | None
) -> tuple[Dump, NormalForm, dict[str, bytes], Mapping[str, float]]:
    """The dump of a job, its normal form, the contents of both's files, and seconds by stage."""
    with compile_workload(job, folder=folder) as compiled:
        dump, files = capture(job, compiled, where=job.reference.name)
        dump = replace(dump, manifest=with_digests(dump.manifest, files))
        stages = compiled.record.seconds
    normal = normal_form(dump, files)
    return dump, normal, {**files, **normal.files()}, stages


def make_dumps(
    jobs: Sequence[Job],
    out: Path,
    *,
    at_once: int,
    on_done: Callable[[Job, Made | XlapipeError], None],
) -> None:
    """Dumps of `jobs` below `out`; the rest as in `run_jobs`."""
    run_jobs(jobs, lambda job: make_dump(job, out), at_once=at_once, on_done=on_done)


def run_jobs(
    jobs: Sequence[Job],
    work: Callable[[Job], Outcome],
    *,
    at_once: int,
    on_done: Callable[[Job, Outcome | XlapipeError], None],
) -> None:
    """Does `work` for `jobs`, `at_once` at a time; tells of each as it ends, failed ones included.

    What `on_done` raises passes through, and jobs that have not begun are left undone.
    """
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        running: dict[Future[Outcome], Job] = {pool.submit(work, job): job for job in jobs}
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    job = running.pop(future)
                    error = future.exception()
                    if error is None:
                        on_done(job, future.result())
                    elif isinstance(error, XlapipeError):
                        on_done(job, error)
                    else:
                        raise error
        finally:
            for future in running:
                future.cancel()
