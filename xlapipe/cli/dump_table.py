"""The table of `xlapipe dump` and `xlapipe build`, with a row for each compile that has ended."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from xlapipe.cli.output import NEXT
from xlapipe.cli.progress import Bar
from xlapipe.plans.wording import counted
from xlapipe.report.pages import aligned_row
from xlapipe.report.target_text import device_text, tune_text
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
_TO_TUNE = (
    ("untuned", "is untuned", "are untuned"),
    ("predicted", "has predicted tuning", "have predicted tuning"),
)


class DumpTable:
    """Prints rows as compiles end, with a progress bar on a terminal."""

    def __init__(self, jobs: "Sequence[Job]", *, silent: bool) -> None:
        self._console = Console(quiet=silent, soft_wrap=True, highlight=False)
        self._bar = Bar("compiling", len(jobs), console=self._console, silent=silent)
        self._widths = {
            **_HEADINGS,
            "workload": _width("workload", (job.reference.name for job in jobs)),
            "target": _width("target", map(_device, jobs)),
        }
        line_width = sum(self._widths.values()) + 2 * (len(self._widths) - 1)
        if self._console.is_terminal and line_width > self._console.width:
            del self._widths["gemms by backend"]
            if len({job.policy for job in jobs}) == 1:
                del self._widths["gemm"]
        names = {job.reference.name for job in jobs}
        self._only_name = names.pop() if len(names) == 1 else None
        self._rows: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        self._bar.start()
        self._row({heading: heading for heading in _HEADINGS}, style="bold")
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        kinds = Counter(map(_tuned, self._rows))
        for kind, one, several in _TO_TUNE:
            if kinds[kind]:
                plans = f"{counted(kinds[kind], 'plan')} {one if kinds[kind] == 1 else several}"
                self._line(f"{plans}; {tune_text(self._only_name)}")
        for row in self._rows:
            for note in row["notes"]:
                self._line(f"{row['path']} is the same; {note}")
        folders = [row["path"] for row in self._rows]
        for folder in folders[:_MAX_FOLDERS]:
            self._line(f"in {folder}")
        if len(folders) > _MAX_FOLDERS:
            self._line(f"and {len(folders) - _MAX_FOLDERS} other folders")
        if folders:
            self._line(f"Next: xlapipe show {shlex.quote(folders[0])}")

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        gemms = ", ".join(f"{count} {backend}" for backend, count in row["gemms"].items())
        self._row(
            {
                "workload": row["workload"],
                "target": device_text(row["target"], row["topology"]),
                "gemm": row["gemm_policy"],
                "tuned": _tuned(row),
                "total": rounded(row["total_allocation_bytes"]),
                "temp": rounded(row["temp_bytes"]),
                "seconds": f"{row['seconds']:.1f}",
                "dump": "written" if row["changed"] else "same",
                "gemms by backend": gemms or "none",
            }
        )
        self._bar.add_done()

    def add_failure(self, job: "Job") -> None:
        """Prints a row for a compile that failed; its error is printed after the table."""
        about = {"workload": job.reference.name, "target": _device(job), "gemm": str(job.policy)}
        self._row({**about, "dump": "FAILED"}, style="red")
        self._bar.add_done()

    def _row(self, cells: Mapping[str, str], style: str = "") -> None:
        right = {column for column, heading in enumerate(self._widths) if heading in _RIGHT}
        shown = [cells.get(heading, "") for heading in self._widths]
        self._line(aligned_row(shown, [*self._widths.values()], right), style)

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
