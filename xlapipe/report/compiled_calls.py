"""What `xlapipe check` adds for a workload's further compiles: its other calls, and determinism."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xlapipe.plans.wording import counted
from xlapipe.report.subjects import CheckedSubject
from xlapipe.report.units import rounded

if TYPE_CHECKING:
    from xlapipe.differences.comparing.other_compiles import DeterminismCost, ProgramOfCall


def with_compiles(
    checked: CheckedSubject,
    programs: "Sequence[ProgramOfCall]",
    cost: "DeterminismCost | None",
) -> CheckedSubject:
    """The checked subject with the programs of its calls, and with what determinism costs."""
    lines = [*_program_lines(programs), *([cost.text] if cost is not None else [])]
    rows = [
        {
            "call": program.number,
            "why": program.why or None,
            "seconds": program.seconds,
            "cpu_seconds": program.cpu_seconds,
            "total_bytes": program.total_bytes,
        }
        for program in programs
    ]
    figures = None
    if cost is not None:
        figures = {
            "option": cost.option,
            "instructions": cost.instructions,
            "left": cost.left,
            "predicted_seconds": list(cost.seconds),
            "refused": cost.refused or None,
        }
    details = {**checked.details, "programs": rows, "deterministic": figures}
    return replace(checked, closing_lines=(*checked.closing_lines, *lines), details=details)


def _program_lines(programs: "Sequence[ProgramOfCall]") -> Iterator[str]:
    if not programs:
        return
    calls = programs[0].dump.manifest.call
    known = [program for program in programs if program.seconds is not None]
    wall = sum(program.seconds or 0.0 for program in known)
    cpu = sum(program.cpu_seconds or 0.0 for program in known)
    count = counted(len(programs), "program")
    yield (
        f"{counted(calls.calls if calls is not None else 1, 'call')} use {count}, compiled in "
        f"{wall:.1f} s, {cpu:.1f} s of CPU"
        + ("" if len(known) == len(programs) else " (the time of some is unknown)")
    )
    for program in programs:
        seconds = f"{program.seconds:.1f} s" if program.seconds is not None else "unknown time"
        why = program.why or f"call {program.number} compiles"
        yield f"  {why}: {seconds}, {rounded(program.total_bytes)}"
