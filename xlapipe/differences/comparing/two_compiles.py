"""Compiles that are compared: of versions of jax, and of two jobs at the same time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import ATTACHED, CompileSettings, jobs_of
from xlapipe.compile.pipeline import WrittenDump, make_dump, run_jobs
from xlapipe.compile.tuning import Tuned
from xlapipe.devices.platforms import NVIDIA, platform_named
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.differences.comparing.jax_environments import parsed_version, python_with_jax
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import XlapipeError


def jobs_of_versions(
    workload: str,
    common: CompileSettings,
    versions: tuple[str, str],
    *,
    on_install: Callable[[str], None],
) -> dict[str, Job]:
    """A compile with each of two versions of jax, which are installed if they are missing."""
    if common.target not in (None, ATTACHED):
        platform = platform_named(target_named(common.target).platform)
        if platform is not NVIDIA:
            raise XlapipeError(
                f"--versions compiles for NVIDIA GPUs only, and target {common.target} is a "
                f"{platform.noun} of {platform.vendor}; fix: make a dump with each "
                f"{platform.compiler_packages[0]}, and compare the dumps with `xlapipe diff A B`"
            )
    for name in versions:
        parsed_version(name)
    job = job_of_any_jax(workload, common)
    installed = version("jaxlib")
    return {
        f"jax {name}": job
        if name == installed
        else replace(job, python=python_with_jax(name, on_install=on_install))
        for name in versions
    }


def job_of_any_jax(workload: str, common: CompileSettings) -> Job:
    """An untuned compile: what is known of a device is known for one version of jaxlib."""
    if isinstance(common.tuning, Path):
        raise XlapipeError(
            f"--tuning {common.tuning}: a lock is valid for one version of jaxlib only; fix: leave "
            "it out"
        )
    (job,) = jobs_of([workload], replace(common, tuning=Tuned.NONE))
    return job


def compile_each(
    jobs: Mapping[str, Job], out: Path | None, scratch: Path, *, on_done: Callable[[str], None]
) -> dict[str, XlaFiles]:
    """Compiles two jobs in parallel and opens their dumps, by the labels of the jobs."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise XlapipeError(
                f"{out}: cannot be written: {error.strerror}; fix: choose another --out"
            ) from None
    labels = {id(job): label for label, job in jobs.items()}
    folders = {id(job): out or scratch / str(number) for number, job in enumerate(jobs.values())}
    opened: dict[str, XlaFiles] = {}

    def done(job: Job, made: WrittenDump | XlapipeError) -> None:
        if isinstance(made, XlapipeError):
            raise made
        opened[labels[id(job)]] = made.dump
        on_done(labels[id(job)])

    run_jobs(
        tuple(jobs.values()),
        lambda job: make_dump(job, folders[id(job)]),
        lambda job, made: made,
        at_once=2,
        on_done=done,
    )
    return opened
