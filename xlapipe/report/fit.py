"""`xlapipe fit`: progress, the table, the largest that fits, and the same as plain data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from xlapipe.errors import XlapipeError
from xlapipe.report.progress import Bar
from xlapipe.report.units import exact

if TYPE_CHECKING:
    from xlapipe.compiling.fit import Fitted, Largest, Row
    from xlapipe.compiling.sweep import Axis

_STAGES = ("load", "lower", "compile", "read", "all")
_BYTES = ("arguments, B", "outputs, B", "temp, B", "total, B", "headroom, B")


class FitProgress(Bar):
    """A bar on a terminal, and the row that came last."""

    def __init__(self, total: int, *, silent: bool) -> None:
        super().__init__("compiling", total, console=Console(stderr=True), silent=silent)

    def done(self, row: "Row") -> None:
        """Shows that a row is known."""
        self.advance(last=escape(f"{row.combination}: {_answer(row)}".removeprefix(": ")))


def print_fit(
    workload: str,
    target: str,
    rows: "Sequence[Row]",
    axes: "Sequence[Axis]",
    best: "Sequence[Largest]",
) -> None:
    """The table in the order of the combinations, and the largest that fits in words."""
    # Lines are as long as they are: a figure that is cut short would be a wrong one.
    console = Console(soft_wrap=True, highlight=False)
    known = [row.outcome for row in rows if not isinstance(row.outcome, XlapipeError)]
    console.print(Text(_title(workload, target, known), style="bold"))
    header = [*(axis.name for axis in axes), *_BYTES, "fits", *(f"{name}, s" for name in _STAGES)]
    lines = [[*map(repr, row.combination.values.values()), *_cells(row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    styles = ["bold", *("" if row.fits else "red" for row in rows)]
    for line, style in zip([header, *lines], styles, strict=True):
        padded = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        console.print(Text("  ".join(padded).rstrip(), style=style))
    for note in _notes(known):
        console.print(Text(note))
    for answer in best:
        console.print(Text(_largest_line(answer, rows, axes[0])))


def fit_figures(
    workload: str, target: str, rows: "Sequence[Row]", best: "Sequence[Largest]"
) -> dict[str, Any]:
    """The JSON of `xlapipe fit`."""
    return {
        "workload": workload,
        "target": target,
        "rows": [_row_figures(row) for row in rows],
        "largest": [
            {
                "others": dict(answer.others),
                "values": dict(answer.row.combination.values) if answer.row is not None else None,
                "some_failed": answer.failed,
            }
            for answer in best
        ],
    }


def _row_figures(row: "Row") -> dict[str, Any]:
    figures: dict[str, Any] = {
        "values": dict(row.combination.values),
        "reference": row.combination.reference.name,
    }
    if isinstance(row.outcome, XlapipeError):
        return {**figures, "fits": None, "error": str(row.outcome)}
    found = row.outcome
    return {
        **figures,
        "fits": found.fits,
        "error": None,
        "workload": found.workload,
        "topology": found.topology,
        "argument_bytes": found.argument_bytes,
        "output_bytes": found.output_bytes,
        "temp_bytes": found.temp_bytes,
        "total_bytes": found.total_bytes,
        "device_memory_bytes": found.device_memory_bytes,
        "usable_bytes": found.usable_bytes,
        "headroom_bytes": found.headroom_bytes,
        "rematerialised": found.rematerialised,
        "seconds": dict(found.seconds),
    }


def _title(workload: str, target: str, known: "Sequence[Fitted]") -> str:
    if not known:
        return f"{workload} on {target}"
    topologies = dict.fromkeys(found.topology or "one device" for found in known)
    usable, memory = known[0].usable_bytes, known[0].device_memory_bytes
    return (
        f"{workload} on {target} ({', '.join(topologies)}): each device has {exact(memory)}, of "
        f"which {exact(usable)} may be used"
    )


def _cells(row: "Row") -> list[str]:
    found = row.outcome
    if isinstance(found, XlapipeError):
        return [*["-"] * len(_BYTES), _answer(row), *["-"] * len(_STAGES)]
    numbers = (
        found.argument_bytes,
        found.output_bytes,
        found.temp_bytes,
        found.total_bytes,
        found.headroom_bytes,
    )
    seconds = [f"{found.seconds[stage]:.1f}" for stage in _STAGES]
    return [*(f"{number:,}" for number in numbers), _answer(row), *seconds]


def _answer(row: "Row") -> str:
    if isinstance(row.outcome, XlapipeError):
        return "FAILED"
    return ("yes" if row.fits else "no") + ("*" if row.outcome.rematerialised else "")


def _notes(known: "Sequence[Fitted]") -> list[str]:
    notes = [
        "bytes of one device, by the plan; the CUDA context, NCCL's buffers and what else is "
        "alive in the process are not counted"
    ]
    changed = [found.rematerialised for found in known if found.rematerialised]
    if changed:
        notes.append(
            "*: rematerialised: XLA's estimate was above its limit, and to save memory it computes "
            f"up to {max(changed)} instructions a second time, which takes time at every step"
        )
    return notes


def _largest_line(answer: "Largest", rows: "Sequence[Row]", axis: "Axis") -> str:
    at = ", ".join(f"{name}={value!r}" for name, value in answer.others.items())
    where = f"with {at}: " if at else ""
    unknown = " (not all of them compiled)" if answer.failed else ""
    if answer.row is not None:
        value = answer.row.combination.values[axis.name]
        asked = ", the largest asked for" if value == max(axis.values, key=axis.rank) else ""
        return f"{where}the largest {axis.name} that fits is {value!r}{asked}{unknown}"
    missing = [
        -row.outcome.headroom_bytes
        for row in rows
        if not isinstance(row.outcome, XlapipeError) and row.combination.is_at(answer.others)
    ]
    least = f"; the smallest needs {exact(min(missing))} more" if missing else ""
    return f"{where}no {axis.name} fits{least}{unknown}"
