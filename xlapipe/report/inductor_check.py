"""`xlapipe check` on dumps of torch Inductor: the plan beside what was measured."""

from collections.abc import Iterator

from xlapipe.expect import Finding, Violation
from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.reader import InductorDump
from xlapipe.report.inductor_lines import heading, measured_line
from xlapipe.report.units import exact, signed


def measured_findings(dump: InductorDump) -> tuple[Finding, ...]:
    """For each graph that was measured: its peak, and what it leaves, equal the plan to the byte.

    A peak that is larger holds too if calls of the graph hide bytes.
    """
    return tuple(
        finding for plan in dump.plans if plan.measured is not None for finding in _of(plan)
    )


def check_notes(dump: InductorDump) -> list[str]:
    """What the findings do not cover."""
    notes = ["the plan's invariants hold"]
    for plan in dump.plans:
        if plan.measured is None:
            notes.append(f"{heading(plan)}; not measured")
        elif plan.remainder_bytes:
            notes.append(f"{plan.graph}: {measured_line(plan)}")
        if plan.findings:
            wasted = sum(finding.size_bytes or 0 for finding in plan.findings)
            notes.append(
                f"{plan.graph}: {len(plan.findings)} findings of {exact(wasted)}; "
                "`xlapipe show` lists them"
            )
    return notes


def _of(plan: InductorPlan) -> Iterator[Finding]:
    assert plan.measured is not None
    hides = plan.totals.unknown_allocations
    yield _compared(
        plan, "own peak", plan.measured.own_peak_bytes, plan.totals.own_peak_bytes, bool(hides)
    )
    if plan.measured.end_bytes is not None:
        yield _compared(plan, "bytes left", plan.measured.end_bytes, plan.totals.end_bytes, False)


def _compared(plan: InductorPlan, what: str, measured: int, planned: int, hides: bool) -> Finding:
    difference = measured - planned
    text = f"{exact(measured)} measured, {exact(planned)} planned"
    violations: tuple[Violation, ...] = ()
    if difference and not (hides and difference > 0):
        violations = (
            Violation(
                expected=f"{what} of {exact(measured)}, as measured",
                found=f"{exact(planned)}, {signed(-difference)}",
                where=plan.graph,
                advice="Measure the same program and sizes that the dump was made with.",
            ),
        )
    if difference and not violations:
        text += f"; {signed(difference)} unexplained, in {plan.totals.unknown_allocations} calls"
    return Finding(
        f"{plan.graph}: {what} as measured",
        "the wrapper's allocations and frees in order, beyond what was held before",
        text,
        violations,
    )
