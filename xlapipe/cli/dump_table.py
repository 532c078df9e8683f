"""The table of `xlapipe dump` and `xlapipe build`, with a row for each compile that has ended."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from xlapipe.cli.output import NEXT
from xlapipe.cli.progress import Bar
from xlapipe.report.target_text import device_text, tune_text
from xlapipe.report.text_table import aligned_row
from xlapipe.report.units import rounded
from xlapipe.report.wrapped_text import folded

if TYPE_CHECKING:
    from xlapipe.compile.job import Job

# Rows are printed before all of them are known, so widths are fixed. Only the first two columns are
# as wide as the jobs need, and only the last may be wider than its heading.
_HEADINGS = {
    "workload": 8,
    "target": 6,
    "gemm": 6,
    "tuned": 9,
    "total": 9,
    "temp": 9,
    "seconds": 7,
    "dump": 7,
    "gemms by backend": 16,
}
_RIGHT = {"total", "temp", "seconds"}
_MAX_FOLDERS = 8


class DumpTable(Bar):
    """Prints rows as compiles end, with a progress bar on a terminal."""

    def __init__(self, jobs: "Sequence[Job]", *, silent: bool) -> None:
        self._console = Console(quiet=silent, soft_wrap=True, highlight=False)
        super().__init__("compiling", len(jobs), console=self._console, silent=silent)
        self._widths = {
            **_HEADINGS,
            "workload": _width("workload", (job.reference.name for job in jobs)),
            "target": _width("target", map(_device, jobs)),
        }
        if self._console.is_terminal:
            # What a narrow terminal has no room for: backends, and a policy that is in every row.
            unneeded = ["gemms by backend"]
            unneeded += ["gemm"] if len({job.policy for job in jobs}) == 1 else []
            for heading in unneeded:
                if self._excess > 0:
                    del self._widths[heading]
            least = _HEADINGS["workload"]
            self._widths["workload"] = max(least, self._widths["workload"] - max(0, self._excess))
        self._untuned = 0
        self._predicted = 0
        names = {job.reference.name for job in jobs}
        self._only_name = names.pop() if len(names) == 1 else None
        self._folders: list[str] = []
        self._notes: list[str] = []

    @property
    def _excess(self) -> int:
        """By how many characters rows are wider than the terminal."""
        return sum(self._widths.values()) + 2 * (len(self._widths) - 1) - self._console.width

    def __enter__(self) -> Self:
        super().__enter__()
        self._row(list(_HEADINGS), style="bold")
        return self

    def _print_end(self) -> None:
        if self._untuned:
            plans = "1 plan is" if self._untuned == 1 else f"{self._untuned} plans are"
            self._line(f"{plans} untuned; {tune_text(self._only_name)}")
        if self._predicted:
            plans = "1 plan has" if self._predicted == 1 else f"{self._predicted} plans have"
            self._line(f"{plans} a predicted lock; {tune_text(self._only_name)}")
        for note in self._notes:
            self._line(note)
        for folder in self._folders[:_MAX_FOLDERS]:
            self._line(f"in {folder}")
        if len(self._folders) > _MAX_FOLDERS:
            self._line(f"and {len(self._folders) - _MAX_FOLDERS} other folders")
        if self._folders:
            self._line(f"Next: xlapipe show {shlex.quote(self._folders[0])}")

    def add(self, row: Mapping[str, Any]) -> None:
        """Prints a row of `dump_row`."""
        self._untuned += row["tuned"] is False and row["predicted_lock"] is None
        self._predicted += row["predicted_lock"] is not None
        self._folders.append(row["path"])
        self._notes += [f"{row['path']} is the same; {note}" for note in row["notes"]]
        gemms = ", ".join(f"{count} {backend}" for backend, count in row["gemms"].items())
        self._row(
            [
                row["workload"],
                device_text(row["target"], row["topology"]),
                row["gemm_policy"],
                _tuned(row),
                rounded(row["total_allocation_bytes"]),
                rounded(row["temp_bytes"]),
                f"{row['seconds']:.1f}",
                "written" if row["changed"] else "same",
                gemms or "none",
            ]
        )
        self.advance()

    def add_failure(self, job: "Job") -> None:
        """Prints a row for a compile that failed; its error is printed after the table."""
        row = [job.reference.name, _device(job), str(job.policy)]
        self._row([*row, *[""] * 4, "FAILED", ""], style="red")
        self.advance()

    def _row(self, cells: Sequence[str], style: str = "") -> None:
        shown = [
            (heading, cell)
            for heading, cell in zip(_HEADINGS, cells, strict=True)
            if heading in self._widths
        ]
        widths = [self._widths[heading] for heading, _ in shown]
        right = {column for column, (heading, _) in enumerate(shown) if heading in _RIGHT}
        self._line(aligned_row([cell for _, cell in shown], widths, right), style)

    def _line(self, text: str, style: str = "") -> None:
        if text.startswith(NEXT):  # to be pasted
            self._console.print(Text(text, style=style), soft_wrap=True)
            return
        width = self._console.width if self._console.is_terminal else len(text)
        for part in folded(text, width):
            self._console.print(Text(part, style=style))


def _tuned(row: Mapping[str, Any]) -> str:
    if row["predicted_lock"] is not None:
        return "predicted"
    return {True: "tuned", False: "untuned", None: "-"}[row["tuned"]]


def _device(job: "Job") -> str:
    target = "attached" if job.target is None else job.target.name
    return f"{target} {job.topology}" if job.topology is not None else target


def _width(heading: str, texts: Iterable[str]) -> int:
    return max([_HEADINGS[heading], *map(len, texts)])
