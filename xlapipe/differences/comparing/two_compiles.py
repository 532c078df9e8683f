"""Two compiles that are compared, at the same time."""

from collections.abc import Callable, Mapping
from pathlib import Path

from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import CompiledDump, make_dump, run_jobs
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import XlapipeError


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
