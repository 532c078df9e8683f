"""Dumps of workloads at two commits: of the current folder, and of a checkout of another one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import CompiledDump, WrittenDump, compile_dump, run_jobs, write_new
from xlapipe.differences.comparing.base_checkout import BaseCheckout
from xlapipe.dump.dump import PLAN, is_dump, read_file
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import find_workload, registered_workloads


@dataclass(frozen=True)
class TwoCommits:
    """Two folders with a dump of each workload that compiles; see `folder_name`.

    Attributes:
      count: number of workloads.
      failed: messages of workloads of the current folder that do not compile, by name.
      failed_before: messages for which the base does not compile, with the workloads' names.
      renamed: the base's name of workloads whose definition or plan it has under another one.
    """

    before: Path
    after: Path
    count: int
    failed: Mapping[str, str]
    failed_before: Mapping[str, Sequence[str]]
    renamed: Mapping[str, str]


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
    renamed = _renamed(before, after, own, others)
    count = len(own.keys() | others.keys()) - len(renamed)
    return TwoCommits(before, after, count, failed, failed_before, renamed)


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

    def keep(job: Job, made: CompiledDump) -> WrittenDump:
        return write_new(made, out / folder_name(names[id(job)]))

    def done(job: Job, made: WrittenDump | XlapipeError) -> None:
        if isinstance(made, XlapipeError):
            failed[names[id(job)]] = str(made)
        on_done(names[id(job)])

    out.mkdir()
    run_jobs(list(jobs.values()), work, keep, at_once=at_once, on_done=done)
    return failed


def _renamed(
    before: Path, after: Path, own: Mapping[str, Job], others: Mapping[str, Job]
) -> dict[str, str]:
    """Moves dumps of workloads that have another name now below that; the old names by the new.

    A workload is the same if its definition is, else if its plan is.
    """
    renamed: dict[str, str] = {}
    for is_same in (_same_definition, _same_plan):
        for old in sorted(others.keys() - own.keys() - {*renamed.values()}):
            for new in sorted(own.keys() - others.keys() - renamed.keys()):
                folders = before / folder_name(old), after / folder_name(new)
                if all(map(is_dump, folders)) and is_same(others[old], own[new], *folders):
                    folders[0].rename(before / folder_name(new))
                    renamed[new] = old
                    break
    return renamed


def _same_definition(old: Job, new: Job, *_: Path) -> bool:
    return str(old.reference) == str(new.reference)


def _same_plan(old: Job, new: Job, *folders: Path) -> bool:
    """Whether the plans are the same but for the name of the workload."""
    old_plan, new_plan = (read_file(folder, PLAN).partition(b"\n[")[2] for folder in folders)
    return old_plan == new_plan
