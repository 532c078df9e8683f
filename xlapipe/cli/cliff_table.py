"""The result of `xlapipe fit --cliff`, as JSON and as text."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.text import Text

from xlapipe.report.cells import Cell, Seconds
from xlapipe.report.records import named
from xlapipe.report.text_table import Table, aligned_rows
from xlapipe.report.units import exact, microseconds
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.recomputed import RecomputedKernel
from xlapipe.search.sizing.cliff import Cliff

_HEADINGS = ("temp, B", "total, B", "headroom, B", "to the limit, B", "recomputed", "floor")
_MAX_KERNELS = 12


def cliff_figures(cliff: Cliff) -> dict[str, Any]:
    """The value of the key `cliff` in the JSON of `xlapipe fit --cliff`."""
    return {
        **named(cliff, "vary", "saved_bytes", "added_seconds"),
        "below": _side(cliff.below, cliff),
        "above": _side(cliff.above, cliff),
        "as_written": _side_of(cliff.above[0], cliff.as_written, cliff)
        if cliff.above is not None and cliff.as_written is not None
        else None,
        "recomputed": cliff.above[1].recomputed if cliff.above is not None else (),
    }


def _side(side: tuple[int, PlannedMemory] | None, cliff: Cliff) -> dict[str, Any] | None:
    return _side_of(*side, cliff) if side is not None else None


def _side_of(size: int, memory: PlannedMemory, cliff: Cliff) -> dict[str, Any]:
    return {
        "value": size,
        **named(memory, "temp_bytes", "total_bytes", "headroom_bytes", "rematerialised"),
        "floor_seconds": memory.floor_seconds,
        "bytes_to_cliff": cliff.bytes_to_cliff(memory),
    }


def cliff_lines(workload: str, target: str, cliff: Cliff) -> Iterator[Text]:
    """Where XLA begins to rematerialise, both sides, and what it computes a second time."""
    yield Text(f"{workload} on {target}: {_summary(cliff)}", style="bold")
    rows = [_cells(str(row), memory, cliff) for row, memory in _sides(cliff)]
    for line in aligned_rows([(cliff.vary, *_HEADINGS), *rows], set(range(1, 7))):
        yield Text(line)
    yield from map(Text, _cost_lines(cliff))


def _summary(cliff: Cliff) -> str:
    if cliff.above is None:
        return f"XLA rematerialises at no {cliff.vary} that was compiled"
    above = f"{cliff.vary}={cliff.above[0]}"
    if cliff.below is None:
        return f"XLA rematerialises already at the smallest size, {above}"
    return f"XLA begins to rematerialise between {cliff.vary}={cliff.below[0]} and {above}"


def _sides(cliff: Cliff) -> Iterator[tuple[str, PlannedMemory]]:
    sides = {side[0] for side in (cliff.below, cliff.above) if side is not None}
    for size, row in sorted(cliff.compiled, key=lambda item: item[0]):
        if isinstance(row.outcome, PlannedMemory):
            mark = "  <" if size in sides else ""
            yield f"{size}{mark}", row.outcome
            if cliff.above is not None and size == cliff.above[0] and cliff.as_written is not None:
                yield f"{size} without a limit", cliff.as_written


def _cells(size: str, memory: PlannedMemory, cliff: Cliff) -> tuple[str, ...]:
    distance = cliff.bytes_to_cliff(memory)
    return (
        size,
        f"{memory.temp_bytes:,}",
        f"{memory.total_bytes:,}",
        f"{memory.headroom_bytes:,}",
        "-" if distance is None or memory is cliff.as_written else f"{distance:,}",
        f"{memory.rematerialised:,}",
        microseconds(memory.floor_seconds),
    )


def _cost_lines(cliff: Cliff) -> Iterator[str]:
    if cliff.above is None or cliff.as_written is None:
        return
    size, memory = cliff.above
    fits = "fits" if cliff.as_written.fits else "does not fit"
    yield (
        f"As written, {cliff.vary}={size} needs {exact(cliff.as_written.total_bytes)} and {fits}; "
        f"rematerialising saves {exact(cliff.saved_bytes or 0)}."
    )
    kernels = memory.recomputed
    if not kernels:
        yield "No kernel is computed a second time: what XLA repeats launches nothing."
        return
    share = ""
    if cliff.added_seconds is not None and memory.floor_seconds:
        share = f", {cliff.added_seconds / memory.floor_seconds:.1%} of the step's floor"
    plural = "" if len(kernels) == 1 else "s"
    yield (
        f"Computed a second time: {len(kernels)} kernel{plural}, at least "
        f"{microseconds(cliff.added_seconds)}{share}:"
    )
    columns: Mapping[str, Callable[[RecomputedKernel], Cell]] = {
        "floor": lambda kernel: Seconds(kernel.floor_seconds),
        "launches": lambda kernel: kernel.launches,
        "value, B": lambda kernel: "-" if kernel.value_bytes is None else kernel.value_bytes,
        "instruction": lambda kernel: kernel.instruction,
        "source": lambda kernel: kernel.source or kernel.op_name or "-",
    }
    yield from Table.of("", kernels, columns).first(_MAX_KERNELS).lines()
