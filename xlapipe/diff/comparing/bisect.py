"""The first of several compiles whose plan is worse: over versions of jax, or XLA options.

The candidates are in an order in which one change makes the plan worse and none makes it better
again. The first one must be good and the last one bad; between them is bisected.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xlapipe.compile.job import Job, XlaOption
from xlapipe.compile.pipeline import WrittenDump, make_dump, make_dumps
from xlapipe.diff import Difference, compare_opened
from xlapipe.diff.comparing.jax_environments import parsed_version
from xlapipe.dump.dump import Dump
from xlapipe.dump.opened import Opened
from xlapipe.errors import XlapipeError
from xlapipe.expect import check_all

_LISTED = re.compile(r"^Available versions: (?P<versions>.+)$", re.MULTILINE)
_RELEASE = re.compile(r"\d+(?:\.\d+){1,3}")


@dataclass(frozen=True)
class Step:
    """A candidate that was compiled.

    Attributes:
      failed: the expectations that fail.
      bad: whether the plan is worse than the first one's.
      less_bytes: bytes of temporary memory below the first one's; negative if above.
      compile_ratio: CPU time of the compile relative to the first one's; None if it is unknown.
    """

    label: str
    dump: Dump
    temp_bytes: int
    total_bytes: int
    failed: tuple[str, ...]
    bad: bool
    less_bytes: int = 0
    compile_ratio: float | None = None


@dataclass(frozen=True)
class Bisection:
    """The result.

    Attributes:
      steps: the compiled candidates, in the order of the candidates.
      good, bad: neighbours in that order; None if the last candidate is as good as the first.
      difference: difference of the plans of `good` and `bad`.
    """

    steps: tuple[Step, ...]
    good: str | None
    bad: str | None
    difference: Difference | None


def bisect(
    candidates: Mapping[str, Callable[[], Job]],
    out: Path,
    *,
    expect: str | None,
    compile_time: float | None = None,
    scheduler: str | None = None,
    on_done: Callable[[Step], None] = lambda step: None,
) -> Bisection:
    """Compiles as few candidates as finding the first bad one takes.

    Args:
      candidates: makes the job of each label, in order; called only for those that are compiled.
      out: folder for the dumps.
      expect: a candidate is bad if an expectation fails whose text contains this, and that holds
        for the first one; an empty text means any expectation. None: a candidate is bad if its
        temporary memory is larger than the first one's.
      compile_time: instead, a candidate is bad if its compile takes more than this times the CPU
        time of the first one's; each is compiled anew.
      scheduler: address of a Dask scheduler whose workers compile; None for this machine.

    Raises:
      XlapipeError: fewer than two candidates; an expectation fails for the first one already, or
        none has the text; a compile failed, or did not tell its time.
    """
    labels = list(candidates)
    if len(labels) < 2:
        raise XlapipeError(f"expected two or more to bisect, found {labels}")
    steps: dict[str, Step] = {}

    def compiled(label: str) -> Step:
        if label not in steps:
            job = candidates[label]()
            if compile_time is not None:
                job = replace(job, cache_folder=None)
            dump = _dump(job, out / _folder(label), scheduler)
            base = next(iter(steps.values()), None)
            steps[label] = _step(label, dump, base, expect, compile_time)
            on_done(steps[label])
        return steps[label]

    compiled(labels[0])
    low, high = 0, len(labels) - 1
    if not compiled(labels[high]).bad:
        return Bisection(_ordered(steps, labels), None, None, None)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compiled(labels[middle]).bad else (middle, high)
    good, bad = labels[low], labels[high]
    opened = [Opened.of_dump(steps[label].dump) for label in (good, bad)]
    difference = compare_opened(opened[0], opened[1], names=(good, bad))
    return Bisection(_ordered(steps, labels), good, bad, difference)


def _dump(job: Job, out: Path, scheduler: str | None) -> Dump:
    if scheduler is None:
        return make_dump(job, out).dump
    written: list[WrittenDump | XlapipeError] = []
    make_dumps(
        [job],
        out,
        at_once=1,
        on_done=lambda job, outcome: written.append(outcome),
        scheduler=scheduler,
    )
    if isinstance(written[0], XlapipeError):
        raise written[0]
    return written[0].dump


def _ordered(steps: Mapping[str, Step], labels: Sequence[str]) -> tuple[Step, ...]:
    return tuple(steps[label] for label in labels if label in steps)


def _folder(label: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", label)[:80]


def _step(
    label: str, dump: Dump, base: Step | None, expect: str | None, compile_time: float | None
) -> Step:
    findings = check_all(dump.expectations, dump.program)
    failed = tuple(finding.expectation for finding in findings if not finding.holds)
    totals = dump.plan.totals
    if base is None and expect is not None:
        _refuse_base(label, [finding.expectation for finding in findings], failed, expect)
    ratio = _compile_ratio(dump, base.dump if base is not None else dump)
    if compile_time is not None and ratio is None:
        raise XlapipeError(f"{label}: expected the time of its compile, found none in its dump")
    if base is None:
        bad = False
    elif compile_time is not None:
        bad = (ratio or 0.0) > compile_time
    elif expect is None:
        bad = totals.temp_bytes > base.temp_bytes
    else:
        bad = any(expect in text and text not in base.failed for text in failed)
    less_bytes = base.temp_bytes - totals.temp_bytes if base is not None else 0
    total_bytes = totals.total_allocation_bytes
    return Step(label, dump, totals.temp_bytes, total_bytes, failed, bad, less_bytes, ratio)


def _compile_ratio(dump: Dump, base: Dump) -> float | None:
    own, first = dump.compile_times, base.compile_times
    return own.ratio_to(first) if own is not None and first is not None else None


def _refuse_base(label: str, texts: list[str], failed: tuple[str, ...], expect: str) -> None:
    chosen = [text for text in texts if expect in text]
    if not chosen:
        raise XlapipeError(
            f"--expect {expect!r}: expected a part of an expectation of the workload, found "
            f"{'; '.join(texts) or 'that it has none'}"
        )
    if all(text in failed for text in chosen):
        raise XlapipeError(f"--expect {expect!r}: fails for {label} already: {'; '.join(chosen)}")


def option_jobs(job: Job, options: Mapping[str, XlaOption]) -> dict[str, Callable[[], Job]]:
    """Jobs with the first none, one, two, … of the options."""
    names = list(options)

    def with_first(count: int) -> Callable[[], Job]:
        chosen = {name: options[name] for name in names[:count]}
        return lambda: replace(job, options={**job.options, **chosen})

    labels = ["XLA's default options", *(f"{name}={options[name]}" for name in names)]
    return {label: with_first(count) for count, label in enumerate(labels)}


def versions_between(text: str, *, released: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """The versions in `A..B`, or in `A,B,C`, oldest first.

    Args:
      released: lists every release of jax; called only for `A..B`.

    Raises:
      XlapipeError: text of another form, or a version that is too old.
    """
    first, dots, last = text.partition("..")
    if not dots:
        names = tuple(text.split(","))
        if len(names) < 2 or len(set(names)) < len(names):
            raise XlapipeError(f"--versions {text}: expected A..B, or two or more versions")
        return tuple(sorted(names, key=parsed_version))
    low, high = parsed_version(first), parsed_version(last)
    if low >= high:
        raise XlapipeError(f"--versions {text}: expected the older version first")
    between = {
        name
        for name in released()
        if _RELEASE.fullmatch(name) and low < tuple(map(int, name.split("."))) < high
    }
    return tuple(sorted({first, last, *between}, key=parsed_version))


def released_versions() -> tuple[str, ...]:
    """Every release of jaxlib that pip finds for this Python.

    Raises:
      XlapipeError: pip is missing, or cannot reach its index.
    """
    # `--json` is newer than the pip of many environments.
    command = [sys.executable, "-m", "pip", "index", "versions", "jaxlib"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    match = _LISTED.search(process.stdout)
    if match is None:
        last = (process.stderr.strip().splitlines() or ["no output"])[-1]
        raise XlapipeError(
            f"pip cannot list the releases of jaxlib: {last:.200}; fix: list them yourself: "
            "--versions A,B,C"
        )
    return tuple(match["versions"].split(", "))
