"""Collectives, as JSON and as lines of text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from xlapipe.plans.collectives import Collective
from xlapipe.plans.program import RequestedCollective
from xlapipe.report.text_table import aligned_rows

_MAX_ROWS = 40
_HEADINGS = ("kind", "count", "input", "output", "devices", "execution", "overlaps with", "source")
_RIGHT = {1, 2, 3}
_Row = Mapping[str, Any]


def collective_figures(
    collectives: Sequence[Collective] | None, gpus_per_host: int | None = None
) -> list[dict[str, Any]] | None:
    """The JSON of each collective; bytes are per device and execution, `step_…` per step.

    Args:
      gpus_per_host: of the topology; None if unknown.
    """
    if collectives is None:
        return None
    return [
        {
            **{field.name: getattr(collective, field.name) for field in fields(collective)},
            "group_size": collective.group_size,
            "devices": collective.devices,
            "crosses_hosts": _crosses_hosts(collective, gpus_per_host),
            "wire_bytes": collective.wire_bytes,
            "step_output_bytes": collective.of_step(collective.output_bytes),
            "step_wire_bytes": collective.of_step(collective.wire_bytes),
        }
        for collective in collectives
    ]


def _crosses_hosts(collective: Collective, gpus_per_host: int | None) -> bool | None:
    if collective.between_slices:
        return True
    return None if gpus_per_host is None else collective.crosses_hosts(gpus_per_host)


def collective_lines(
    collectives: Sequence[_Row] | None, requested: Sequence[RequestedCollective] | None
) -> Iterator[str]:
    """Sums by kind and a table with one row for equal collectives; no line without collectives.

    Args:
      collectives: from `collective_figures`.
      requested: those of the traced program.
    """
    wanted = _counts(collective.kind for collective in requested or ())
    if not collectives:
        if wanted:
            yield f"collectives: none after compiling; requested: {wanted}"
        return
    suffix = f"; requested: {wanted}" if wanted else ""
    yield f"collectives: {_counts(row['kind'] for row in collectives)}{suffix}"
    for kind in sorted({row["kind"] for row in collectives}):
        yield f"  {kind}: {_sums([row for row in collectives if row['kind'] == kind])}"
    rows = _table_rows(collectives)
    for line in aligned_rows([_HEADINGS, *rows[:_MAX_ROWS]], _RIGHT):
        yield f"  {line}"
    if len(rows) > _MAX_ROWS:
        yield f"  … and {len(rows) - _MAX_ROWS} more (--json lists all)"


def _sums(collectives: Sequence[_Row]) -> str:
    """What one device receives and sends in a step."""
    overlapped = sum(bool(row["overlapped_by"]) and row["asynchronous"] for row in collectives)
    return (
        f"{_total(collectives, 'step_output_bytes')} output and "
        f"{_total(collectives, 'step_wire_bytes')} on the wire per device and step; "
        f"{overlapped} of {len(collectives)} overlapped"
    )


def _total(collectives: Sequence[_Row], figure: str) -> str:
    sizes = [row[figure] for row in collectives]
    return "unknown bytes" if None in sizes else f"{sum(sizes):,} B"


def _table_rows(collectives: Sequence[_Row]) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, ...], list[_Row]] = {}
    for row in collectives:
        combined = len(row["results"])
        key = (
            row["kind"] + (f" ({combined} combined)" if combined > 1 else ""),
            _bytes(row["operand_bytes"]),
            _bytes(row["output_bytes"]),
            row["devices"] + _crossing(row),
            _execution(row),
            str(row["source"] or ""),
        )
        groups.setdefault(key, []).append(row)
    return [
        (kind, str(len(group)), operand, output, devices, execution, _overlap(group), source)
        for (kind, operand, output, devices, execution, source), group in groups.items()
    ]


def _crossing(row: _Row) -> str:
    if row["between_slices"]:
        return " across slices"
    return " across hosts" if row["crosses_hosts"] else ""


def _execution(row: _Row) -> str:
    """Whether it is asynchronous, and how often it is executed in a step."""
    mode, executions = "async" if row["asynchronous"] else "sync", row["executions"]
    return mode if executions == 1 else f"{mode} × {'?' if executions is None else executions}"


def _overlap(group: Sequence[_Row]) -> str:
    if not any(row["overlapped_by"] for row in group):
        return "nothing"
    instructions = _range([len(row["overlapped_by"]) for row in group], "instruction")
    return f"{instructions}, {_range([row['overlapped_gemms'] for row in group], 'gemm')}"


def _range(numbers: Sequence[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    count = str(low) if low == high else f"{low} to {high}"
    return f"{count} {noun}" + ("" if high == 1 else "s")


def _bytes(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes:,} B"


def _counts(kinds: Iterable[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items()))
