"""Expectations of collectives: how many, of how many bytes, asked for or not, overlapped."""

from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.collectives import Collective
from xlapipe.plan.hlo import COLLECTIVES
from xlapipe.plan.program import Program
from xlapipe.plan.shapes import shape_bytes


@dataclass(frozen=True)
class CollectiveCount(Expectation):
    """Exactly `count` collectives of XLA's `kind` (`all-gather`, …; None: of any).

    Several that XLA combined are one. One in a loop's body is one, whatever the loop's trips.
    """

    count: int
    kind: str | None = None

    def check(self, program: Program) -> Finding:
        collectives = program.plan.collectives
        if collectives is None:
            return self.finding("unknown", no_module())
        if (wrong := wrong_kind(self.kind)) is not None:
            return self.finding("unknown", wrong)
        found = of_kind(collectives, self.kind)
        measured = kind_counts(collectives)
        if len(found) == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{self.count} × {self.kind or 'a collective'}",
                f"{len(found)} ({measured})",
                ", ".join(each.instruction for each in found[:8]),
                found[-1].source if found else None,
                "look whether XLA combined several, turned one into another, or added some for "
                "how arguments and results are sharded",
            ),
        )


@dataclass(frozen=True)
class CollectiveBytes(Expectation):
    """The collectives of `kind` have exactly `size_bytes` of results, on one device in a step.

    `operands=True` counts what goes in instead. A loop's trips count; combining changes nothing.
    """

    size_bytes: int
    kind: str | None = None
    operands: bool = False

    def check(self, program: Program) -> Finding:
        collectives = program.plan.collectives
        if collectives is None:
            return self.finding("unknown", no_module())
        if (wrong := wrong_kind(self.kind)) is not None:
            return self.finding("unknown", wrong)
        total, violations = 0, []
        side = "operands" if self.operands else "results"
        found = of_kind(collectives, self.kind)
        for each in found:
            step = each.of_step(_bytes_of(each, self.operands))
            if step is None:
                violations.append(_untold(each))
            else:
                total += step
        measured = f"{total:,} B of {side} in {len(found)} collectives"
        if not violations and total != self.size_bytes:
            largest = max(found, key=lambda each: _bytes_of(each, self.operands) or 0, default=None)
            violations.append(
                Violation(
                    f"{self.size_bytes:,} B of {side} of {self.kind or 'all collectives'}",
                    f"{total:,} B, {total - self.size_bytes:+,} B",
                    describe(largest) if largest is not None else "",
                    largest.source if largest is not None else None,
                    "compare shapes, dtypes and the number of devices with the formula",
                )
            )
        return self.finding(measured, *violations)


@dataclass(frozen=True)
class CollectiveEach(Expectation):
    """Every array that a collective of `kind` results in has `size_bytes`, on one device.

    One that XLA combined has several arrays. (Of all-reduces of several arrays XLA may make one
    of an array that holds them all: state `CollectiveBytes` for those.)
    """

    kind: str
    size_bytes: int

    def check(self, program: Program) -> Finding:
        collectives = program.plan.collectives
        if collectives is None:
            return self.finding("unknown", no_module())
        if (wrong := wrong_kind(self.kind)) is not None:
            return self.finding("unknown", wrong)
        found = of_kind(collectives, self.kind)
        violations = [
            Violation(
                f"{self.size_bytes:,} B from each {self.kind}",
                f"{_said(shape_bytes(shape))} ({shape})",
                describe(each),
                each.source,
                "compare the shape, its dtype and the number of devices with the formula",
            )
            for each in found
            for shape in each.results
            if shape_bytes(shape) != self.size_bytes
        ]
        if not found:
            violations.append(_none_of(self.kind, collectives))
        arrays = sum(len(each.results) for each in found)
        return self.finding(f"{arrays} arrays in {len(found)} collectives", *violations)


@dataclass(frozen=True)
class CollectivesOverlap(Expectation):
    """Every collective of `kind` runs beside work that is scheduled between its start and end.

    But for at most `all_but` of them: before the first gather, and behind the last scatter, there
    may be nothing to compute. `gemms=True` asks for a matrix product between them.
    """

    kind: str
    all_but: int = 0
    gemms: bool = False

    def check(self, program: Program) -> Finding:
        collectives = program.plan.collectives
        if collectives is None:
            return self.finding("unknown", no_module())
        if (wrong := wrong_kind(self.kind)) is not None:
            return self.finding("unknown", wrong)
        found = of_kind(collectives, self.kind)
        alone = [
            each
            for each in found
            if not (each.overlapped_gemms if self.gemms else each.overlapped_by)
            or not each.asynchronous
        ]
        measured = f"{len(found) - len(alone)} of {len(found)} overlapped"
        if not found:
            return self.finding(measured, _none_of(self.kind, collectives))
        if len(alone) <= self.all_but:
            return self.finding(measured)
        work = "a gemm" if self.gemms else "work"
        return self.finding(
            measured,
            *(
                Violation(
                    f"{work} between start and end of every {self.kind}"
                    + (f" but {self.all_but}" if self.all_but else ""),
                    f"{each.instruction} is {_how(each)}",
                    describe(each),
                    each.source,
                    "ask for it earlier than its result is read, or look at the combiner's "
                    "thresholds (xla_gpu_…_combine_threshold_bytes): one of all waits for all",
                )
                for each in alone
            ),
        )


def _how(collective: Collective) -> str:
    if not collective.asynchronous:
        return "synchronous"
    work = len(collective.overlapped_by)
    return f"beside {work} instructions, none of them a gemm" if work else "beside nothing"


def of_kind(collectives: Sequence[Collective], kind: str | None) -> list[Collective]:
    """Those of a kind; all for None."""
    return [each for each in collectives if kind in (None, each.kind)]


def _bytes_of(collective: Collective, operands: bool) -> int | None:
    return collective.operand_bytes if operands else collective.output_bytes


def kind_counts(collectives: Sequence[Collective]) -> str:
    """`2 all-gather, 1 reduce-scatter`."""
    counts = {kind: sum(each.kind == kind for each in collectives) for kind in sorted(COLLECTIVES)}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "none"


def describe(collective: Collective) -> str:
    """`all-gather.2 of bf16[16,16]{1,0}, bf16[16,16]{1,0} over 2 devices`."""
    size = collective.group_size
    over = "" if size is None else f" over {size} devices"
    return f"{collective.instruction} of {', '.join(collective.results)}{over}"


def _said(size_bytes: int | None) -> str:
    return "unknown bytes" if size_bytes is None else f"{size_bytes:,} B"


def _untold(collective: Collective) -> Violation:
    often = collective.executions is None
    return Violation(
        "bytes of a step that the plan tells",
        f"{collective.kind} {collective.instruction} "
        + ("runs who knows how often" if often else "is of unknown bytes"),
        describe(collective),
        collective.source,
        "it is in a loop of unknown trips or in a branch: use a scan or a static number of trips"
        if often
        else "its shapes are dynamic, or a part of a tuple",
    )


def _none_of(kind: str, collectives: Sequence[Collective]) -> Violation:
    return Violation(
        f"a collective of kind {kind}",
        f"none (there are: {kind_counts(collectives)})",
        advice="look whether XLA turned it into another kind, or found that nothing reads it",
    )


def wrong_kind(kind: str | None) -> Violation | None:
    """What is wrong with a kind that XLA does not know, of which there would always be none."""
    if kind is None or kind in COLLECTIVES:
        return None
    known = ", ".join(sorted(COLLECTIVES))
    return Violation(f"a kind of collective: {known}", f"{kind!r}", advice="use XLA's own name")


def no_module() -> Violation:
    """What is wrong with a dump of which collectives cannot be told."""
    return Violation(
        "the collectives of the module",
        "the dump holds no whole HLO module",
        advice="dump with xla_dump_hlo_as_proto or xla_dump_hlo_as_text",
    )
