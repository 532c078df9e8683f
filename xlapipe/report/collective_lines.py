"""Collectives, as JSON, as a section of a report, and as lines of text."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.topology import Topology
from xlapipe.plans.collectives import Collective
from xlapipe.plans.program import RequestedCollective
from xlapipe.report import cells
from xlapipe.report.cells import Cell, Name
from xlapipe.report.pages import Section, Table, grouped
from xlapipe.report.xla_subject import XlaSubject

_MAX_ROWS = 40


def requested_collectives(opened: XlaSubject) -> tuple[RequestedCollective, ...] | None:
    """The collectives of the traced program; None if unknown."""
    return opened.dump.manifest.requested_collectives if opened.dump is not None else None


def collective_figures(opened: XlaSubject) -> list[dict[str, Any]] | None:
    """The JSON of each collective; None if they are unknown.

    Bytes are per device and execution, `step_…` per step.
    """
    if opened.plan.collectives is None:
        return None
    gpus = _gpus_per_host(opened)
    return [
        {
            **{field.name: getattr(collective, field.name) for field in fields(collective)},
            "group_size": collective.group_size,
            "devices": collective.devices,
            "crosses_hosts": _crosses_hosts(collective, gpus),
            "wire_bytes": collective.wire_bytes,
            "step_output_bytes": collective.of_step(collective.output_bytes),
            "step_wire_bytes": collective.of_step(collective.wire_bytes),
        }
        for collective in opened.plan.collectives
    ]


def _gpus_per_host(opened: XlaSubject) -> int | None:
    """GPUs per host of the topology; None if unknown."""
    manifest = opened.dump.manifest if opened.dump is not None else None
    if manifest is None or manifest.topology is None:
        return None
    if platform_named(manifest.platform).has_chip_grid:
        return None
    return Topology.parse(manifest.topology).gpus


def _crosses_hosts(collective: Collective, gpus_per_host: int | None) -> bool | None:
    """Whether a group spans hosts; None if unknown."""
    if collective.between_slices:
        return True
    return None if gpus_per_host is None else collective.crosses_hosts(gpus_per_host)


def collective_section(opened: XlaSubject) -> Section:
    """Sums by kind and a table with one row for equal collectives; no line without collectives."""
    wanted = _counts(item.kind for item in requested_collectives(opened) or ())
    collectives = opened.plan.collectives
    if not collectives:
        line = f"collectives: none after compiling; requested: {wanted}"
        return Section("Collectives", (line,) if wanted else (), key="collectives")
    suffix = f"; requested: {wanted}" if wanted else ""
    lines = [f"collectives: {_counts(item.kind for item in collectives)}{suffix}"]
    for kind, items in sorted(grouped(collectives, lambda item: item.kind).items()):
        lines.append(f"{kind}: {_sums(items)}")
    gpus = _gpus_per_host(opened)
    columns: Mapping[str, Callable[[Sequence[Collective]], Cell]] = {
        "kind": lambda group: _kind(group[0]),
        "count": len,
        "input": lambda group: _size(group[0].operand_bytes),
        "output": lambda group: _size(group[0].output_bytes),
        "devices": lambda group: group[0].devices + _crossing(group[0], gpus),
        "execution": lambda group: _execution(group[0]),
        "overlaps with": _overlap,
        "source": lambda group: Name.of(group[0].source),
        "instruction": lambda group: Name(
            group[0].instruction, tuple(item.instruction for item in group)
        ),
        "operation": lambda group: Name.of(group[0].op_name),
    }
    alike = ("kind", "input", "output", "devices", "execution", "source")
    groups = grouped(collectives, lambda item: tuple(columns[name]([item]) for name in alike))
    page_only = ("instruction", "operation")
    table = Table.of("", groups.values(), columns, name="instruction", page_only=page_only)
    return Section("Collectives", tuple(lines), (table,), "collectives")


def collective_lines(opened: XlaSubject) -> Iterator[str]:
    """The section for a terminal."""
    section = collective_section(opened)
    for number, line in enumerate(section.lines):
        yield f"  {line}" if number else line
    for table in section.tables:
        yield from table.first(_MAX_ROWS).lines()


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


def _kind(collective: Collective) -> str:
    combined = len(collective.results)
    return collective.kind + (f" ({combined} combined)" if combined > 1 else "")


def _crossing(collective: Collective, gpus_per_host: int | None) -> str:
    if collective.between_slices:
        return " across slices"
    return " across hosts" if _crosses_hosts(collective, gpus_per_host) else ""


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


def _size(size_bytes: int | None) -> Cell:
    return "?" if size_bytes is None else cells.size(size_bytes)


def _counts(kinds: Iterable[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items()))
