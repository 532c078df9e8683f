"""Plans and findings for a terminal, with rich; readable without colour."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from xlapipe.expect import Finding
from xlapipe.plan import AllocationKind, BufferAllocation, Plan
from xlapipe.plan.donation import Donation
from xlapipe.report.collectives import collective_lines
from xlapipe.report.donation import donation_lines
from xlapipe.report.findings import finding_lines
from xlapipe.report.progress import Bar

_LARGEST_ROWS = 40
# Where no terminal tells its width, nothing needs to be folded.
_WIDTH_OF_FILES = 160
_COLUMNS = (
    ("workload", 20),
    ("target", 10),
    ("gemm", 6),
    ("tuned", 7),
    ("allocs", 6),
    ("total bytes", 14),
    ("temp bytes", 12),
    ("gemms by backend", 24),
    ("aliases", 7),
    ("seconds", 7),
    ("hlo_dumps", 9),
)


class DumpTable(Bar):
    """Rows that appear as compiles end, with a bar of what is left on a terminal."""

    def __init__(self, total: int, *, silent: bool) -> None:
        self._console = Console(quiet=silent, soft_wrap=True, highlight=False)
        super().__init__("compiling", total, console=self._console, silent=silent)
        self._untuned = 0

    def __enter__(self) -> Self:
        super().__enter__()
        self._row([name for name, _ in _COLUMNS], style="bold")
        return self

    def _tell_end(self) -> None:
        if self._untuned:
            self._console.print(
                f"untuned: {self._untuned}, made without a device's autotune results, so that "
                "gemm tiles and split-K are XLA's defaults, not the device's choice"
            )

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of `dump_row`."""
        self._untuned += not row["tuned"]
        gemms = ", ".join(f"{count} {backend}" for backend, count in row["gemms"].items())
        self._row(
            [
                row["workload"],
                _device(row),
                row["gemm_policy"],
                row["autotuning"].partition(" ")[0],
                str(row["allocations"]),
                f"{row['total_allocation_bytes']:,}",
                f"{row['temp_bytes']:,}",
                gemms or "none",
                str(row["aliases"]),
                f"{row['seconds']:.1f}",
                "written" if row["changed"] else "same",
            ]
        )
        self.advance()

    def add_failure(self, name: str, policy: str) -> None:
        """A row for a compile that failed; the message is the command line's to give."""
        self._row([name, "", policy, *[""] * (len(_COLUMNS) - 4), "FAILED"], style="red")
        self.advance()

    def _row(self, cells: Sequence[str], style: str = "") -> None:
        padded = (
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
            for cell, (name, width) in zip(cells, _COLUMNS, strict=True)
        )
        self._console.print(Text("  ".join(padded).rstrip(), style=style))


_NUMBERS = ("allocs", "total bytes", "temp bytes", "aliases", "seconds")


def _device(figures: Mapping[str, Any]) -> str:
    """The target, and how many there are of it: `h200 8x8`."""
    return " ".join(filter(None, (figures["target"], figures["topology"])))


def print_plan(
    name: str, figures: Mapping[str, Any], plan: Plan, donated: Sequence[Donation]
) -> None:
    """`xlapipe show`: totals, allocations and what lies in them, aliases, donation, gemms."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(Text(name, style="bold"))
    if figures.get("workload"):
        versions = ", ".join(f"{key} {value}" for key, value in figures["versions"].items())
        console.print(
            f"{figures['workload']} for {_device(figures)}, gemm policy "
            f"{figures['gemm_policy']}, {figures['autotuning']}; {versions}"
        )
    for key, value in figures["totals"].items():
        console.print(f"  {key:<24} {value:>18,}")
    if figures["live_range_peak_bytes"] is not None:
        console.print(
            f"  {'live_range_peak_bytes':<24} {figures['live_range_peak_bytes']:>18,}"
            f"  at position {figures['live_range_peak_position']}"
        )
    _print_allocations(console, figures, plan)
    paths = {leaf["parameter_number"]: leaf["path"] for leaf in figures.get("arguments", ())}
    outputs = {leaf["index"]: leaf["path"] for leaf in figures.get("outputs", ())}
    console.print(Text(f"aliases: {len(plan.aliases) or 'none'}", style="bold"))
    for alias in () if donated else plan.aliases:  # the donations name each of them
        index = alias.output_index
        output = outputs.get(index[0]) if index else None
        console.print(
            escape(
                f"  parameter {alias.parameter_number} {paths.get(alias.parameter_number, '')} -> "
                f"{output or ('output ' + str(list(index)) if index is not None else 'an output')}"
            )
        )
    for line in donation_lines(donated):
        console.print(Text(line))
    if figures["gemms"] is not None:
        _print_gemms(console, figures["gemms"])
    for line in collective_lines(figures["collectives"], figures["requested_collectives"]):
        console.print(Text(line))
    if figures["thunks"] is not None:
        counts = ", ".join(f"{count} {kind}" for kind, count in figures["thunks"].items())
        console.print(Text("thunks", style="bold"))
        console.print(f"  {counts or 'none'}")


def _print_allocations(console: Console, figures: Mapping[str, Any], plan: Plan) -> None:
    table = Table(title="allocations, largest first", title_justify="left", box=None)
    for column in ("index", "bytes"):
        table.add_column(column, justify="right")
    for column in ("kinds", "what lies in it"):
        table.add_column(column, overflow="fold")
    paths = {leaf["parameter_number"]: leaf["path"] for leaf in figures.get("arguments", ())}
    ordered = sorted(plan.allocations, key=lambda each: (-each.size_bytes, each.index))
    for allocation in ordered[:_LARGEST_ROWS]:
        kinds = ", ".join(allocation.kinds)
        number = allocation.parameter_number
        if number is not None:
            name = f"parameter {number} {paths.get(number, '')}".strip()
            kinds = kinds.replace("parameter", name, 1)
        row = (str(allocation.index), f"{allocation.size_bytes:,}", kinds, _held(allocation))
        table.add_row(*map(escape, row))
    console.print(table)
    if len(ordered) > _LARGEST_ROWS:
        console.print(f"  … and {len(ordered) - _LARGEST_ROWS} smaller ones (--json has all)")


def _held(allocation: BufferAllocation) -> str:
    if allocation.is_a(AllocationKind.PARAMETER) and len(allocation.values) == 1:
        return allocation.values[0].shape
    largest = sorted(allocation.values, key=lambda value: -value.size_bytes)
    text = "; ".join(f"{value.name} {value.shape}" for value in largest[:3])
    return text + (f"; … {len(largest)} values" if len(largest) > 3 else "")


def _print_gemms(console: Console, gemms: Sequence[Mapping[str, Any]]) -> None:
    console.print(Text(f"gemms: {len(gemms) or 'none'}", style="bold"))
    for gemm in gemms:
        shapes = " × ".join(gemm["shapes"][:-1]) + f" -> {gemm['shapes'][-1]}"
        line = f"  {gemm['backend']:<12} {gemm['instruction']}: {shapes}  {gemm['source'] or ''}"
        console.print(escape(line))


def print_findings(
    name: str,
    label: str,
    findings: Sequence[Finding],
    notes: Sequence[str],
    donated: Sequence[Donation],
    exchanged: Sequence[str] = (),
) -> None:
    """`xlapipe check`: one line for what holds, a paragraph for what does not, the donations.

    Args:
      exchanged: lines of `collective_lines`.
    """
    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{name}: autotuning {label}", style="bold"))
    for note in notes:
        console.print(f"  note: {escape(note)}")
    for finding in findings:
        if finding.holds:
            console.print(Text(f"  ok    {finding.expectation}: {finding.measured}"))
            continue
        console.print(Text(f"  FAIL  {finding.expectation}", style="red"))
        for line in finding_lines(finding):
            console.print(Text(f"        {line}".rstrip()))
    held = sum(finding.holds for finding in findings)
    for line in (*donation_lines(donated), *exchanged):
        console.print(Text(f"  {line}"))
    if findings:
        console.print(f"  {held} of {len(findings)} expectations hold")
