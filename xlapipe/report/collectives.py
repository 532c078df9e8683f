"""Collectives, as JSON and as lines of text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from xlapipe.plans.collectives import Collective
from xlapipe.plans.program import RequestedCollective
from xlapipe.report.text_table import Table

_MAX_ROWS = 40
_HEADINGS = ("kind", "count", "input", "output", "devices", "execution", "overlaps with", "source")
_RIGHT = {1, 2, 3}


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective with what the topology determines about it.

    Attributes:
      crosses_hosts: whether a group spans hosts; None if unknown.
    """

    collective: Collective
    crosses_hosts: bool | None

    def json_fields(self) -> dict[str, Any]:
        """Bytes are per device and execution, `step_…` per step."""
        collective = self.collective
        return {
            **{field.name: getattr(collective, field.name) for field in fields(collective)},
            "group_size": collective.group_size,
            "devices": collective.devices,
            "crosses_hosts": self.crosses_hosts,
            "wire_bytes": collective.wire_bytes,
            "step_output_bytes": collective.of_step(collective.output_bytes),
            "step_wire_bytes": collective.of_step(collective.wire_bytes),
        }


def collective_rows(
    collectives: Sequence[Collective] | None, gpus_per_host: int | None = None
) -> tuple[CollectiveRow, ...] | None:
    """A row of each collective; None if they are unknown.

    Args:
      gpus_per_host: GPUs per host of the topology; None if unknown.
    """
    if collectives is None:
        return None
    return tuple(
        CollectiveRow(collective, _crosses_hosts(collective, gpus_per_host))
        for collective in collectives
    )


def _crosses_hosts(collective: Collective, gpus_per_host: int | None) -> bool | None:
    if collective.between_slices:
        return True
    return None if gpus_per_host is None else collective.crosses_hosts(gpus_per_host)


def collective_lines(
    rows: Sequence[CollectiveRow] | None, requested: Sequence[RequestedCollective] | None
) -> Iterator[str]:
    """Sums by kind and a table with one row for equal collectives; no line without collectives.

    Args:
      rows: from `collective_rows`.
      requested: those of the traced program.
    """
    wanted = _counts(collective.kind for collective in requested or ())
    if not rows:
        if wanted:
            yield f"collectives: none after compiling; requested: {wanted}"
        return
    suffix = f"; requested: {wanted}" if wanted else ""
    yield f"collectives: {_counts(row.collective.kind for row in rows)}{suffix}"
    for kind in sorted({row.collective.kind for row in rows}):
        yield f"  {kind}: {_sums([row.collective for row in rows if row.collective.kind == kind])}"
    yield from Table.of_first("", _HEADINGS, _table_rows(rows), _RIGHT, _MAX_ROWS).lines()


def _sums(collectives: Sequence[Collective]) -> str:
    """What one device receives and sends in a step."""
    overlapped = sum(bool(item.overlapped_by) and item.asynchronous for item in collectives)
    output = _total([item.of_step(item.output_bytes) for item in collectives])
    wire = _total([item.of_step(item.wire_bytes) for item in collectives])
    return (
        f"{output} output and {wire} on the wire per device and step; "
        f"{overlapped} of {len(collectives)} overlapped"
    )


def _total(sizes: Sequence[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return "unknown bytes" if len(known) < len(sizes) else f"{sum(known):,} B"


def _table_rows(rows: Sequence[CollectiveRow]) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, ...], list[Collective]] = {}
    for row in rows:
        collective = row.collective
        combined = len(collective.results)
        key = (
            collective.kind + (f" ({combined} combined)" if combined > 1 else ""),
            _bytes(collective.operand_bytes),
            _bytes(collective.output_bytes),
            collective.devices + _crossing(row),
            _execution(collective),
            str(collective.source or ""),
        )
        groups.setdefault(key, []).append(collective)
    return [
        (kind, str(len(group)), operand, output, devices, execution, _overlap(group), source)
        for (kind, operand, output, devices, execution, source), group in groups.items()
    ]


def _crossing(row: CollectiveRow) -> str:
    if row.collective.between_slices:
        return " across slices"
    return " across hosts" if row.crosses_hosts else ""


def _execution(collective: Collective) -> str:
    """Whether it is asynchronous, and how often it is executed in a step."""
    mode, executions = "async" if collective.asynchronous else "sync", collective.executions
    return mode if executions == 1 else f"{mode} × {'?' if executions is None else executions}"


def _overlap(group: Sequence[Collective]) -> str:
    if not any(collective.overlapped_by for collective in group):
        return "nothing"
    instructions = _range([len(item.overlapped_by) for item in group], "instruction")
    return f"{instructions}, {_range([item.overlapped_gemms for item in group], 'gemm')}"


def _range(numbers: Sequence[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    count = str(low) if low == high else f"{low} to {high}"
    return f"{count} {noun}" + ("" if high == 1 else "s")


def _bytes(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes:,} B"


def _counts(kinds: Iterable[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items()))
