"""Collectives as plain data for `--json`, and as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.plan.collectives import Collective
from xlapipe.plan.hlo import SourceLine
from xlapipe.plan.program import RequestedCollective

_MOST_LINES = 40
_HEADINGS = ("kind", "count", "in", "out", "devices", "runs", "beside", "source")


def collective_figures(
    collectives: Sequence[Collective] | None, gpus_per_host: int | None = None
) -> list[dict[str, Any]] | None:
    """Each collective; bytes are those of one device at one execution, but for `step_…`.

    Args:
      gpus_per_host: of the topology; None where it is not known.
    """
    if collectives is None:
        return None
    return [
        {
            **asdict(each),
            "source": _text(each.source),
            "group_size": each.group_size,
            "devices": each.devices,
            "crosses_hosts": None if gpus_per_host is None else each.crosses_hosts(gpus_per_host),
            "wire_bytes": each.wire_bytes,
            "step_output_bytes": each.of_step(each.output_bytes),
            "step_wire_bytes": each.of_step(each.wire_bytes),
        }
        for each in collectives
    ]


def requested_figures(
    requested: Sequence[RequestedCollective] | None,
) -> list[dict[str, Any]] | None:
    """Each collective that the traced program asks for; None where the dump does not tell."""
    if requested is None:
        return None
    return [{**asdict(each), "source": _text(each.source)} for each in requested]


def _text(source: SourceLine | None) -> str | None:
    return None if source is None else str(source)


def collective_lines(
    collectives: Sequence[Mapping[str, Any]] | None,
    requested: Sequence[Mapping[str, Any]] | None,
) -> Iterator[str]:
    """Sums by kind, and a table of those that differ; nothing where there are none.

    Args:
      collectives, requested: as `collective_figures` and `requested_figures` give them.
    """
    if not collectives:
        if requested:
            yield f"collectives: none compiled; asked for: {_counted(requested)}"
        return
    asked = f"; asked for: {_counted(requested)}" if requested else ""
    yield f"collectives: {_counted(collectives)}{asked}"
    for kind in sorted({each["kind"] for each in collectives}):
        yield f"  {kind}: {_sums([each for each in collectives if each['kind'] == kind])}"
    rows = [_HEADINGS, *_rows(collectives)]
    widths = [max(len(row[column]) for row in rows[:_MOST_LINES]) for column in range(len(rows[0]))]
    for row in rows[:_MOST_LINES]:
        cells = (
            cell.rjust(width) if heading in ("count", "in", "out") else cell.ljust(width)
            for cell, width, heading in zip(row, widths, _HEADINGS, strict=True)
        )
        yield f"  {'  '.join(cells)}".rstrip()
    if len(rows) > _MOST_LINES:
        yield f"  … and {len(rows) - _MOST_LINES} more (--json has all)"


def _sums(collectives: Sequence[Mapping[str, Any]]) -> str:
    """What one device gets and sends in a step."""
    overlapped = sum(bool(each["overlapped_by"]) and each["asynchronous"] for each in collectives)
    return (
        f"{_total(collectives, 'step_output_bytes')} out, "
        f"{_total(collectives, 'step_wire_bytes')} on the wire, on one device in a step; "
        f"{overlapped} of {len(collectives)} overlapped"
    )


def _total(collectives: Sequence[Mapping[str, Any]], figure: str) -> str:
    sizes = [each[figure] for each in collectives]
    return "unknown bytes" if None in sizes else f"{sum(sizes):,} B"


def _rows(collectives: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row for those that are alike."""
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for each in collectives:
        combined = len(each["results"])
        times = each["executions"]
        key = (
            each["kind"] + (f" ({combined} combined)" if combined > 1 else ""),
            _bytes(each["operand_bytes"]),
            _bytes(each["output_bytes"]),
            each["devices"] + (" across hosts" if each["crosses_hosts"] else ""),
            ("async" if each["asynchronous"] else "sync")
            + ("" if times == 1 else f" × {'?' if times is None else times}"),
            each["source"] or "",
        )
        alike.setdefault(key, []).append(each)
    return [
        (kind, str(len(group)), operand, output, devices, runs, _beside(group), source)
        for (kind, operand, output, devices, runs, source), group in alike.items()
    ]


def _beside(group: Sequence[Mapping[str, Any]]) -> str:
    if not any(each["overlapped_by"] for each in group):
        return "nothing"
    work = _range([len(each["overlapped_by"]) for each in group], "instruction")
    return f"{work}, {_range([each['overlapped_gemms'] for each in group], 'gemm')}"


def _range(numbers: Sequence[int], what: str) -> str:
    low, high = min(numbers), max(numbers)
    count = str(low) if low == high else f"{low} to {high}"
    return f"{count} {what}" + ("" if high == 1 else "s")


def _bytes(size: int | None) -> str:
    return "?" if size is None else f"{size:,} B"


def _counted(collectives: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for each in collectives:
        counts[each["kind"]] = counts.get(each["kind"], 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
