"""`xlapipe fit`: progress, the table, the largest that fits, and the same as plain data."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from xlapipe.errors import XlapipeError
from xlapipe.report.units import exact, rounded

if TYPE_CHECKING:
    from xlapipe.fit import Fitted, Largest, Row
    from xlapipe.vary import Axis

_STAGES = ("load", "lower", "compile", "read", "all")
_WIDTH_OF_FILES = 160


class FitProgress:
    """A bar on a terminal, and the row that came last."""

    def __init__(self, total: int, *, silent: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("compiling"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=silent or not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> "FitProgress":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def done(self, row: "Row") -> None:
        """Shows that a row is known."""
        said = f"{row.combination}: {_answer(row)}".removeprefix(": ")
        self._progress.update(self._task, advance=1, description=escape(said))


def print_fit(
    workload: str,
    target: str,
    rows: "Sequence[Row]",
    axes: "Sequence[Axis]",
    best: "Sequence[Largest]",
) -> None:
    """The table in the order of the combinations, and the largest that fits in words."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    known = [row.outcome for row in rows if not isinstance(row.outcome, XlapipeError)]
    console.print(Text(_title(workload, target, known), style="bold"))
    table = Table(box=None, pad_edge=False)
    for axis in axes:
        table.add_column(axis.name, justify="right")
    for name in ("arguments, B", "outputs, B", "temp, B", "total, B", "headroom, B"):
        table.add_column(name, justify="right")
    table.add_column("fits")
    for name in _STAGES:
        table.add_column(f"{name}, s", justify="right")
    for row in rows:
        table.add_row(*(repr(value) for value in row.combination.values.values()), *_cells(row))
    console.print(table)
    for line in _notes(known):
        console.print(line)
    for answer in best:
        console.print(Text(f"  {_largest_line(answer, axes[0])}"))


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
    topologies = sorted({found.topology or "one device" for found in known})
    title = (
        f"{workload} on {target} ({', '.join(topologies)})" if known else f"{workload}, {target}"
    )
    if not known:
        return title
    found = known[0]
    return (
        f"{title}: {exact(found.usable_bytes)} of the {exact(found.device_memory_bytes)} of each "
        "device may be used"
    )


def _cells(row: "Row") -> list[str]:
    found = row.outcome
    if isinstance(found, XlapipeError):
        return [*[""] * 5, _answer(row), *[""] * len(_STAGES)]
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
    mark = "*" if row.outcome.rematerialised else ""
    if row.fits:
        return f"yes{mark}"
    return f"no{mark}, by {rounded(-row.outcome.headroom_bytes)}"


def _notes(known: "Sequence[Fitted]") -> list[str]:
    notes = [
        "bytes of one device, by the plan; the CUDA context, NCCL's buffers and what else is "
        "alive in the process are not counted"
    ]
    changed = [found.rematerialised for found in known if found.rematerialised]
    if changed:
        notes.append(
            f"*: XLA found it too large and computes up to {max(changed)} instructions a second "
            "time: less memory than the program as written, and slower"
        )
    return notes


def _largest_line(answer: "Largest", axis: "Axis") -> str:
    at = ", ".join(f"{name}={value!r}" for name, value in answer.others.items())
    where = f"with {at}: " if at else ""
    unknown = ", of those that compiled" if answer.failed else ""
    if answer.row is None:
        return f"{where}no {axis.name} fits{unknown}"
    value = answer.row.combination.values[axis.name]
    return f"{where}the largest {axis.name} that fits is {value!r}{unknown}"
