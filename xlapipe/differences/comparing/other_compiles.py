"""Further compiles of a workload that a check was asked for: its other calls, and an option."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import changed_reference
from xlapipe.compile.pipeline import compile_dump
from xlapipe.dump.dump import Dump
from xlapipe.errors import XlapipeError
from xlapipe.plans.run_to_run import OPTIONS, run_to_run
from xlapipe.plans.wording import counted
from xlapipe.time.study import study_of

OWN_CALLS = "own"
_SHAPE = re.compile(r"\d+(?:x\d+)*(?::\w+)?|:\w+")


def parse_calls(text: str) -> tuple[Mapping[str, str], ...]:
    """The calls of `x=5x128,y=5; x=16x128,y=16`: shapes by path; none of `own`.

    Raises:
      XlapipeError: text of another form.
    """
    if text == OWN_CALLS:
        return ()
    return tuple(dict(map(_leaf, call.split(","))) for call in text.split(";"))


def _leaf(text: str) -> tuple[str, str]:
    path, _, shape = text.strip().rpartition("=")
    if not path or not _SHAPE.fullmatch(shape):
        raise XlapipeError(
            f"--calls: expected {OWN_CALLS}, or shapes of leaves, as in x=5x128,y=5;x=16x128,y=16, "
            f"found {text.strip()!r:.80}; fix: name a leaf as `xlapipe show` does, and its shape"
        )
    return path, shape


def job_with_calls(job: Job, calls: Sequence[Mapping[str, str]]) -> Job:
    """The compile of a workload with further calls."""
    if not calls:
        return job
    stated = [dict(call) for call in calls]
    return replace(job, reference=changed_reference(job.reference, calls=stated))


@dataclass(frozen=True)
class ProgramOfCall:
    """A program that a call compiles.

    Attributes:
      number: of the call; 1 is the workload's own.
      why: the leaf that makes it; empty for the first.
    """

    number: int
    why: str
    dump: Dump

    @property
    def seconds(self) -> float | None:
        """Wall time of its compile; None if it is not known."""
        times = self.dump.compile_times
        return times.wall_seconds if times is not None else None

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of its compile; None if it is not known."""
        times = self.dump.compile_times
        return times.cpu_seconds if times is not None else None

    @property
    def total_bytes(self) -> int:
        return self.dump.plan.totals.total_allocation_bytes


def programs_of_calls(
    job: Job, dump: Dump, calls: Sequence[Mapping[str, str]]
) -> tuple[ProgramOfCall, ...]:
    """The programs of all calls; those after the first are compiled.

    Raises:
      XlapipeError: a program does not compile.
    """
    facts = dump.manifest.call
    programs = [ProgramOfCall(1, "", dump)]
    for other in facts.programs if facts is not None else ():
        stated = [dict(call) for call in calls]
        reference = changed_reference(job.reference, calls=stated, call=other.call)
        compiled = compile_dump(replace(job, reference=reference), None, allow_refused=True)
        programs.append(ProgramOfCall(other.call, str(other), compiled.dump))
    return tuple(programs)


@dataclass(frozen=True)
class DeterminismCost:
    """What it costs to let XLA use only what has the same result in each run.

    Attributes:
      instructions: number of those whose result may differ.
      left: number of them with the option; None if there are none, or the option does not compile.
      seconds: predicted time without the option and with it; None where it is not known.
      total_bytes: without the option and with it; the same if it was not tried.
      refused: XLA's error with the option; empty if it has none.
    """

    instructions: int
    left: int | None = None
    seconds: tuple[float | None, float | None] = (None, None)
    total_bytes: tuple[int, int] = (0, 0)
    refused: str = ""

    @property
    def option(self) -> str:
        return OPTIONS[1]

    @property
    def text(self) -> str:
        """On one line."""
        if not self.instructions:
            return "deterministic: no instruction may differ from run to run"
        text = f"deterministic: {counted(self.instructions, 'instruction')} may differ from run to "
        text += f"run; {self.option}=true"
        if self.left is None:
            return f"{text} does not compile: {self.refused}"
        before, after = self.seconds
        cost = "the predicted time is unknown"
        if before and after:
            cost = f"{before * 1e6:,.1f} -> {after * 1e6:,.1f} µs predicted"
            cost += f" ({after / before - 1:+.1%})"
        return f"{text} leaves {self.left}: {cost}, {_bytes_text(*self.total_bytes)}"


def _bytes_text(before: int, after: int) -> str:
    return "the same memory" if before == after else f"{after - before:+,} B"


def determinism_cost(job: Job, dump: Dump) -> DeterminismCost:
    """Compiles a GPU's program with XLA's option, if anything of it may differ from run to run.

    Raises:
      XlapipeError: the job is for a TPU.
    """
    if not job.platform.has_autotuning:
        raise XlapipeError(
            f"{job.reference.name}: --deterministic is for GPUs, whose scatters use atomics; fix: "
            "leave it out"
        )
    count = _count(dump)
    if not count:
        return DeterminismCost(0)
    options = {**job.options, OPTIONS[1]: True}
    try:
        other = compile_dump(replace(job, options=options), None, allow_refused=True).dump
    except XlapipeError as error:
        return DeterminismCost(count, refused=str(error))
    predictions = [study_of(one).prediction for one in (dump, other)]
    before, after = (item.step_seconds if item is not None else None for item in predictions)
    totals = [one.plan.totals.total_allocation_bytes for one in (dump, other)]
    return DeterminismCost(count, _count(other), (before, after), (totals[0], totals[1]))


def _count(dump: Dump) -> int:
    return sum(1 for _ in run_to_run(dump.plan, dump.manifest.options))
