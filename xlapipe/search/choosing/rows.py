"""Which rows of compiled candidates are chosen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from xlapipe.compile.lowering.policy_change import LOOP
from xlapipe.report.records import named
from xlapipe.search.rows import Row, by_target
from xlapipe.time.predict.interval import probability_faster, shipped_errors

# Least probability that a row is faster than another one, for a difference within the error.
_AS_FAST = 0.25
# Shares of a time that are not seen.
_SAME_TIME = 1e-3
_OF_PREDICTION = (
    *("step_seconds", "latency_seconds", "at_least_seconds", "low_seconds", "high_seconds"),
    *("mfu", "network"),
)


def row_figures(row: Row) -> dict[str, Any]:
    """The row as `--json` prints it and `xlapipe.choose` returns it."""
    memory, change = row.memory, row.candidate.change
    return {
        "target": row.candidate.target,
        "arguments": dict(row.candidate.values),
        "change": change.text if change is not None else None,
        "code": change.code if change is not None else None,
        **named(memory, "total_bytes", "temp_bytes", "host_bytes", "error_bytes"),
        **named(memory, "other_plan", "basis"),
        "limit_bytes": memory.usable_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "saved_bytes": row.saved_bytes,
        "effect": row.effect,
        **named(memory.predicted, *_OF_PREDICTION, prefix="predicted_"),
        "price_per_hour": row.price,
        "devices": row.devices,
        "cost_per_million": row.cost_per_million,
        "predicted_seconds_per_item": row.seconds_per_item if row.items else None,
        "probability_faster": row.probability_faster,
        "rematerialised_by_xla": memory.rematerialised,
        "fits": memory.fits,
        "chosen": row.chosen,
    }


def with_chosen(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of each target, the fastest first; the first one that fits is chosen.

    Another one that is slower by less than the error of times is chosen if its memory fits by more
    than its error, and that of the first does not. Targets are in the order in which they were
    given. A change that saves nothing and has no effect, or a bad one, is never chosen.
    """
    ordered: list[Row] = []
    for target_rows in by_target(sorted(rows, key=lambda row: row.number)).values():
        written = {r.candidate.values_text: r for r in target_rows if r.candidate.change is None}
        own = [
            _compared(row, written.get(row.candidate.values_text))
            for row in sorted(target_rows, key=lambda row: row.rank)
        ]
        best = _best([row for row in own if row.fits and not row.is_useless])
        ordered += [
            replace(row, chosen=row is best, probability_faster=_probability(row, best))
            for row in own
        ]
    return tuple(ordered)


def _compared(row: Row, written: Row | None) -> Row:
    """The row with what its change saves."""
    if written is None:
        return row
    saved_bytes = written.memory.total_bytes - row.memory.total_bytes
    return replace(row, saved_bytes=saved_bytes, effect=_effect(row, written))


def _effect(row: Row, written: Row) -> str:
    """That a change has no effect on memory and time, or a bad one; empty for others."""
    change, seconds = row.candidate.change, row.seconds_per_item
    if change is None or not row.is_same_step:
        return ""
    if change.offloads and not row.memory.host_bytes:
        return "moves nothing to the host"
    saved_bytes = written.memory.total_bytes - row.memory.total_bytes
    if saved_bytes > 0 or seconds is None or not written.seconds_per_item:
        return ""
    slower = seconds / written.seconds_per_item - 1
    if slower <= -_SAME_TIME:
        return ""
    if slower >= _SAME_TIME:
        return "no smaller, and slower"
    return "changes nothing" if saved_bytes == 0 else "larger, and no faster"


def _best(fitting: Sequence[Row]) -> Row | None:
    if not fitting or fitting[0].memory.fits_within_error:
        return next(iter(fitting), None)
    fastest = fitting[0]
    as_fast = (row for row in fitting[1:] if (_probability(row, fastest) or 0.0) >= _AS_FAST)
    return next((row for row in as_fast if row.memory.fits_within_error), fastest)


def _probability(row: Row, best: Row | None) -> float | None:
    """The probability that a row is faster than the chosen one."""
    if best is None or row is best or row.is_same_step != best.is_same_step:
        return None
    seconds, others = row.seconds_per_item, best.seconds_per_item
    if not seconds or not others:
        return None
    times = row.memory.predicted, best.memory.predicted
    assert times[0] is not None and times[1] is not None
    if times[0].is_estimate or times[1].is_estimate:
        return None  # no error of an estimate was measured
    return probability_faster(
        (seconds, times[0].spreads), (others, times[1].spreads), shipped_errors()
    )


def lower_bound_notes(rows: Sequence[Row]) -> Iterator[str]:
    """For each target which rows have only a lower bound of their time, and what that means."""
    for target, own in by_target(rows).items():
        bounds = [row for row in own if row.memory.predicted and row.memory.predicted.uncounted]
        if not bounds:
            continue
        reasons = (row.memory.predicted.uncounted for row in bounds if row.memory.predicted)
        why = "; ".join(dict.fromkeys(reason for own_reasons in reasons for reason in own_reasons))
        text = (
            f"{target}: of {len(bounds)} of {len(own)} forms only the least time is known, so they "
            f"are not ranked by time: {why}."
        )
        if any(row.chosen for row in bounds):
            text += (
                " The chosen form is the first that fits, as written or with the fewest bytes; "
                "whether it is the fastest is unknown."
            )
        yield text


def scan_notes(rows: Sequence[Row]) -> Iterator[str]:
    """How long a scan in place of a loop takes to compile, and the step as written."""

    def text(row: Row) -> str:
        seconds = row.memory.seconds
        return f"{seconds['lower'] + seconds['compile']:.1f} s"

    written = {
        (r.candidate.target, r.candidate.values_text): r for r in rows if not r.candidate.change
    }
    for row in rows:
        own, change = row.candidate, row.candidate.change
        loop = written.get((own.target, own.values_text))
        if loop is not None and change and change.policy and change.policy.kind == LOOP:
            yield (
                f"{change.text}: lowered and compiled in {text(row)}, as written in {text(loop)} "
                "(on this machine, without machine code of kernels)."
            )


def front(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows that no other row of their target beats in memory and in time, fastest first."""
    kept: list[Row] = []
    for own in by_target(rows).values():
        least: int | None = None
        for row in sorted(own, key=lambda row: row.rank):
            if least is None or row.memory.total_bytes < least:
                kept.append(row)
                least = row.memory.total_bytes
    return tuple(kept)
