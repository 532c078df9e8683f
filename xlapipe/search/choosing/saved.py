"""What a step's forward pass keeps for the backward pass, beside the plan."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xlapipe.compile.lowering.forward_graph import ForwardGraph, ForwardValue
from xlapipe.devices.targets.device import Device
from xlapipe.plans.occupancy import CountedValue
from xlapipe.plans.program import Program
from xlapipe.search.choosing.at_peak import held_at_peak
from xlapipe.search.choosing.compiles import target_device
from xlapipe.search.choosing.search import seconds_of
from xlapipe.time.recomputed import relative


@dataclass(frozen=True, kw_only=True)
class SavedRow:
    """Values of one source line, primitive and shape that the backward pass uses.

    Attributes:
      name: given with `checkpoint_name`; None for others.
      source: `file:line`, relative to the current folder; None if unknown.
      count: number of values; those of all iterations of a loop are one.
      size_bytes: size of all, on all devices.
      peak_bytes: bytes of those alive at the plan's peak, on one device; None if none of the
        plan's values at the peak has the shape.
      allocations: allocations that hold them then.
      again_seconds: estimated, of computing them once more from their own inputs, on one device.
      on_host: whether a policy moves them to the host's memory.
      why: why they are kept.
    """

    name: str | None
    primitive: str
    shape: tuple[int, ...]
    dtype: str
    source: str | None
    count: int
    size_bytes: int
    peak_bytes: int | None
    allocations: tuple[int, ...]
    again_seconds: float
    on_host: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class SavedValues:
    """What is kept.

    Attributes:
      rows: most bytes first.
      total_bytes: total of the plan.
      saved_bytes: what the plan keeps for the backward pass at its peak, on one device, as
        `xlapipe show` prints it; arguments and outputs are kept anyway.
      arguments: number of arguments that the backward pass reads, which are kept anyway.
      arguments_bytes: bytes of these arguments, on all devices.
      names: that the step gives.
    """

    rows: tuple[SavedRow, ...]
    total_bytes: int
    saved_bytes: int
    arguments: int
    arguments_bytes: int
    names: tuple[str, ...]


def saved_values(program: Program, graph: ForwardGraph, target: str) -> SavedValues | None:
    """What the forward pass of a step keeps; None if it has no gradient."""
    if not graph.arguments_bytes and not any(value.needed for value in graph.values):
        return None
    plan, devices = program.plan, prod((program.facts.mesh or {}).values())
    holder, saved_bytes = held_at_peak(graph.values, plan, several_devices=devices > 1)
    totals = plan.totals
    return SavedValues(
        rows=_rows(graph, holder, target_device(target), devices),
        total_bytes=totals.total_allocation_bytes - totals.thread_local_bytes,
        saved_bytes=saved_bytes,
        arguments=len(graph.arguments_bytes),
        arguments_bytes=sum(graph.arguments_bytes),
        names=graph.names,
    )


def _rows(
    graph: ForwardGraph, holder: Mapping[int, CountedValue], device: Device, devices: int
) -> tuple[SavedRow, ...]:
    groups: dict[tuple[object, ...], list[ForwardValue]] = defaultdict(list)
    for value in graph.values:
        if value.needed:
            groups[(value.key, value.source, value.shape, value.dtype)].append(value)
    rows = []
    ordered = sorted(groups.values(), key=lambda own: -sum(value.size_bytes for value in own))
    for own in ordered:
        matched = [holder[value.number] for value in own if value.number in holder]
        first, key = own[0], own[0].key
        rows.append(
            SavedRow(
                name=key.name if key is not None else None,
                primitive=key.primitive if key is not None else "input of an iteration",
                shape=first.shape,
                dtype=first.dtype,
                source=relative(first.source) if first.source is not None else None,
                count=len(own),
                size_bytes=sum(value.size_bytes for value in own),
                peak_bytes=sum(m.value.size_bytes for m in matched) if matched else None,
                allocations=tuple(sorted({m.allocation.index for m in matched})),
                again_seconds=sum(seconds_of(value, device) for value in own) / devices,
                on_host=first.on_host,
                why=_why(first),
            )
        )
    return tuple(rows)


def _why(value: ForwardValue) -> str:
    if value.key is None:
        return "carried by the loop: input of each iteration, which its body can name at its start"
    if not value.differentiated:
        return "computed outside of the differentiated function, where no policy applies"
    where = " in each iteration of a loop" if value.loop is not None else ""
    if value.on_host:
        return f"moved to the host by a policy{where}"
    if value.key.name is not None:
        return f"named{where}"
    return f"used by the backward pass{where}, and no policy leaves it out"
