"""Workload to Dump, start to finish: compile, capture, normal form, write."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from xlapipe.capture import capture
from xlapipe.compile import DEFAULT_TIMEOUT_SECONDS, GemmPolicy, compile_workload
from xlapipe.dump import PLAN, Dump, Manifest, write_dump
from xlapipe.errors import XlapipeError
from xlapipe.golden import normal_form
from xlapipe.registry import WorkloadReference
from xlapipe.target import Target


@dataclass(frozen=True)
class Job:
    """One compile to do. `target` None stands for the attached GPU."""

    reference: WorkloadReference
    target: Target | None
    policy: GemmPolicy
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True)
class Made:
    """A dump that was made.

    Attributes:
      changed: False if the folder held these very bytes before.
      seconds: wall time of the whole job.
    """

    dump: Dump
    plan_text: str
    changed: bool
    seconds: float


def dump_folder(out: Path, manifest: Manifest) -> Path:
    """`<out>/<workload>/<target>-<gemm policy>-jax<jaxlib version>`."""
    label = f"{manifest.target}-{manifest.gemm_policy}-jax{manifest.versions['jaxlib']}"
    return out / manifest.workload / label


def make_dump(job: Job, out: Path, *, folder: Path | None = None) -> Made:
    """Compiles, and writes the dump below `out`.

    Raises:
      XlapipeError: nothing was written then.
    """
    started = time.monotonic()
    with compile_workload(
        job.reference,
        job.target,
        job.policy,
        timeout_seconds=job.timeout_seconds,
        folder=folder,
    ) as compiled:
        captured, files = capture(compiled, job.target, job.policy, where=job.reference.name)
    path = dump_folder(out, captured.manifest)
    dump = Dump(path, captured.manifest, captured.plan)
    text = normal_form(dump)
    changed = write_dump(path, dump.manifest, {**files, PLAN: text.encode()})
    return Made(dump, text, changed, time.monotonic() - started)


def make_dumps(
    jobs: Sequence[Job],
    out: Path,
    *,
    at_once: int,
    on_done: Callable[[Job, Made | XlapipeError], None],
) -> None:
    """Runs `jobs`, `at_once` children at a time; tells of each as it ends, failed ones included."""
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        running: dict[Future[Made], Job] = {pool.submit(make_dump, job, out): job for job in jobs}
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
