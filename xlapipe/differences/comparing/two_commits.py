"""Dumps of workloads at two commits: of the current folder, and of a checkout of another one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import CompiledDump, compile_dump, make_dump, run_jobs, write_new
from xlapipe.differences.comparing.base_checkout import BaseCheckout
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import find_workload, registered_workloads


@dataclass(frozen=True)
class TwoCommits:
    """Two folders with a dump of each workload that compiles; see `folder_name`.

    Attributes:
      failed: messages of workloads of the current folder that do not compile, by name.
      failed_before: messages for which the base does not compile, with the workloads' names.
    """

    before: Path
    after: Path
    count: int
    failed: Mapping[str, str]
    failed_before: Mapping[str, Sequence[str]]


def folder_name(workload: str) -> str:
    """The name of a workload's folder; `urllib.parse.unquote` gives the workload's."""
    return quote(workload, safe=" (),=[]'")


def compile_both(
    base: BaseCheckout,
    workloads: Sequence[str],
    settings: CompileSettings,
    scratch: Path,
    *,
    at_once: int,
    on_done: Callable[[str], None],
) -> TwoCommits:
    """Compiles workloads of the current folder, then of the base, which finds equal ones compiled.

    Args:
      workloads: names; empty for all that either commit registers.
    """
    own = _jobs(workloads, settings, Path.cwd())
    others = _jobs(workloads, settings, base.folder)
    known = {job.reference.name for job in (*own.values(), *others.values())}
    for name in workloads:
        if name not in known:
            find_workload(name)  # raises
    if not known:
        raise XlapipeError(
            "no workload is registered, here or in the base; fix: name one, or add it to "
            '[tool.xlapipe.workloads] in pyproject.toml: step = "module:attribute"'
        )
    if any(job.cache_folder is None for job in own.values()):  # what both have is compiled once
        compiles = scratch / "compiles"
        own = {name: replace(job, cache_folder=compiles) for name, job in own.items()}
        others = {name: replace(job, cache_folder=compiles) for name, job in others.items()}
    others = {
        name: replace(job, import_paths=base.import_paths, instead_of=base.top)
        for name, job in others.items()
    }
    before, after = scratch / "before", scratch / "after"
    failed = _compile_side(own, after, Path.cwd(), at_once, on_done)
    failed_before: dict[str, list[str]] = {}
    others_failed = _compile_side(
        others, before, base.folder, at_once, lambda name: on_done(f"{name} of {base.name}")
    )
    for name, message in others_failed.items():
        text = message.replace(f"{base.root}/", "").replace(name, "…")
        failed_before.setdefault(text, []).append(name)
    return TwoCommits(before, after, len(own.keys() | others.keys()), failed, failed_before)


def _jobs(workloads: Sequence[str], settings: CompileSettings, folder: Path) -> dict[str, Job]:
    """The jobs of the workloads that a folder's project has, by name and, of several, policy."""
    with chdir(folder):
        references = list(registered_workloads()) if not workloads else []
        for name in workloads:
            with suppress(WorkloadError):
                references.append(find_workload(name))
        several = len(settings.policies) > 1
        return {
            f"{job.reference.name} ({job.policy})" if several else job.reference.name: job
            for job in jobs_of(references, settings)
        }


def _compile_side(
    jobs: Mapping[str, Job], out: Path, folder: Path, at_once: int, on_done: Callable[[str], None]
) -> dict[str, str]:
    """Writes the dumps of jobs below `out`; the messages of those that do not compile, by name."""
    names = {id(job): name for name, job in jobs.items()}
    failed = {}

    def work(job: Job) -> CompiledDump:
        return compile_dump(job, job.reference.folder or folder, allow_refused=True)

    def keep(job: Job, made: CompiledDump) -> CompiledDump:
        return write_new(made, out / folder_name(names[id(job)]))

    def done(job: Job, made: CompiledDump | XlapipeError) -> None:
        if isinstance(made, XlapipeError):
            failed[names[id(job)]] = str(made)
        on_done(names[id(job)])

    out.mkdir()
    run_jobs(list(jobs.values()), work, keep, at_once=at_once, on_done=done)
    return failed


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

    def done(job: Job, made: CompiledDump | XlapipeError) -> None:
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
