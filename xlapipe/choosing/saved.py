"""What a step's forward pass keeps for the backward pass, beside the plan: `xlapipe saved`."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xlapipe.choosing.candidate import Candidate, Change
from xlapipe.choosing.choose import forward_graph_at, target_speeds
from xlapipe.choosing.compiles import Compiles, Limits, job_of
from xlapipe.choosing.policies import chosen_values, places_of, relative
from xlapipe.choosing.search import keep_within, seconds_of
from xlapipe.compiling.child_process import compile_workload
from xlapipe.compiling.make_jobs import CompileOptions
from xlapipe.environment.scratch import scratch_folder
from xlapipe.errors import XlapipeError
from xlapipe.lowering.forward_graph import ForwardGraph, ForwardValue
from xlapipe.plans import Plan
from xlapipe.plans.occupancy import CountedValue, Occupancy, Role
from xlapipe.readers import read_path
from xlapipe.targets.speeds import Speeds

# Arguments are kept anyway.
_KEEPING = (Role.TEMP, Role.OUTPUT, Role.ALIAS)
# A device's part of a value is a power of two at most this small.
_MOST_PARTS = 4096


@dataclass(frozen=True, kw_only=True)
class SavedRow:
    """Values of one source line, primitive and shape that the backward pass uses.

    Attributes:
      name: given with `checkpoint_name`; None for others.
      source: `file:line`, relative to the current folder; None if unknown.
      count: number of values; those of all iterations of a loop are one.
      size_bytes: of all, on all devices.
      peak_bytes: of those that are alive at the plan's peak, on one device; None if none of the
        plan's values at the peak has the shape.
      allocations: that hold them then.
      again_seconds: estimated, of computing them once more from their own inputs.
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
    why: str


@dataclass(frozen=True, kw_only=True)
class SavedValues:
    """What is kept.

    Attributes:
      rows: most bytes first.
      total_bytes: of the plan.
      names: that the step gives.
      unmatched: names of a policy that the step does not give.
    """

    workload: str
    target: str
    rows: tuple[SavedRow, ...]
    total_bytes: int
    names: tuple[str, ...]
    unmatched: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The cheapest change that frees so many bytes, which was compiled.

    Attributes:
      freed_bytes: less than in the plan as written; 0 or less if nothing is freed.
      seconds: added to the predicted time; None if unknown.
    """

    change: Change
    freed_bytes: int
    total_bytes: int
    seconds: float | None


def saved(
    workload: str,
    target: str,
    options: CompileOptions | None = None,
    *,
    policy_names: Sequence[str] = (),
) -> tuple[SavedValues, ForwardGraph]:
    """Compiles the step as written, and lists what its forward pass keeps.

    Args:
      policy_names: names that a policy of the step has.

    Raises:
      XlapipeError: the compile failed, or the step has no gradient.
    """
    with scratch_folder("saved-") as folder:
        note = folder / "graph.json"
        job = job_of(workload, Candidate({}, target), options or CompileOptions(), str(note))
        with compile_workload(replace(job, plan_only=True)) as compiled:
            plan = read_path(compiled.dump_folder)
            several = compiled.record.topology is not None
        graph = forward_graph_at(note)
    if not any(value.needed for value in graph.values):
        raise XlapipeError(
            f"{workload}: nothing is kept for a backward pass: the step has no gradient, or a "
            "jax.custom_vjp hides its residuals; fix: name a step that calls jax.grad"
        )
    rows = _rows(graph, plan, target_speeds(target), several=several)
    unmatched = tuple(name for name in policy_names if name not in graph.names)
    total_bytes = plan.totals.total_allocation_bytes - plan.totals.thread_local_bytes
    return (
        SavedValues(
            workload=workload,
            target=target,
            rows=rows,
            total_bytes=total_bytes,
            names=graph.names,
            unmatched=unmatched,
        ),
        graph,
    )


def freeing(
    workload: str, target: str, options: CompileOptions, graph: ForwardGraph, free_bytes: int
) -> tuple[Freed, ...]:
    """For each place of a policy, the change with the least to compute again for so many bytes.

    Raises:
      XlapipeError: the step keeps less than `free_bytes`, or no change compiles.
    """
    candidates = []
    for place in places_of(graph):
        budget_bytes = place.saved_bytes - free_bytes
        kept = None
        if budget_bytes >= 0:
            kept = keep_within(place.values, budget_bytes, target_speeds(target))
        if kept is not None:
            candidates.append(Candidate({}, target, chosen_values(kept, place)))
    if not candidates:
        most_bytes = max((place.saved_bytes for place in places_of(graph)), default=0)
        raise XlapipeError(
            f"--free {free_bytes}: a policy decides about {most_bytes:,} B in one place; fix: give "
            "fewer bytes, a smaller batch, or more devices"
        )
    compiles = Compiles(workload, Limits(options=options, at_once=2))
    compiles.run([Candidate({}, target), *candidates])
    written = next((row for row in compiles.rows if row.candidate.change is None), None)
    if written is None or len(compiles.rows) < 2:
        raise compiles.failed[0][1]
    freed = []
    for row in compiles.rows:
        if row.candidate.change is None:
            continue
        before, after = written.memory.predicted, row.memory.predicted
        freed.append(
            Freed(
                change=row.candidate.change,
                freed_bytes=written.memory.total_bytes - row.memory.total_bytes,
                total_bytes=row.memory.total_bytes,
                seconds=after.seconds - before.seconds if before and after else None,
            )
        )
    return tuple(sorted(freed, key=lambda item: (item.freed_bytes < free_bytes, item.seconds or 0)))


def _rows(
    graph: ForwardGraph, plan: Plan, speeds: Speeds, *, several: bool
) -> tuple[SavedRow, ...]:
    groups: dict[tuple[object, ...], list[ForwardValue]] = defaultdict(list)
    for value in graph.values:
        if value.needed:
            groups[(value.key, value.source, value.shape, value.dtype)].append(value)
    occupancy = Occupancy(plan)
    alive = list(occupancy.contents(occupancy.peak_position))
    rows = []
    ordered = sorted(groups.values(), key=lambda own: -sum(value.size_bytes for value in own))
    for own in ordered:
        matched = [m for value in own if (m := _take(value, alive, plan, several)) is not None]
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
                again_seconds=sum(seconds_of(value, speeds) for value in own),
                why=_why(first),
            )
        )
    return tuple(rows)


def _take(
    value: ForwardValue, alive: list[CountedValue], plan: Plan, several: bool
) -> CountedValue | None:
    """Takes the value of the plan that holds a forward value at the peak, of its own line first."""
    fitting = [held for held in alive if _holds(held, value, several)]
    if not fitting:
        return None
    line = (value.source or "").rpartition("/")[2]

    def other_line(held: CountedValue) -> bool:
        source = plan.nearest_source(held.value.instruction)
        return source is None or Path(str(source)).name != line

    best = min(fitting, key=other_line)
    alive.remove(best)
    return best


def _holds(held: CountedValue, value: ForwardValue, several: bool) -> bool:
    if held.value.size_bytes == 0 or held.value.shape.is_tuple or held.role not in _KEEPING:
        return False
    if not several:
        dims = sorted(dim for dim in value.shape if dim != 1)
        loops = sorted([*dims, value.trips]) if value.trips > 1 else dims
        own = sorted(held.value.shape.dims_without_ones)
        return own in (dims, loops) and held.value.size_bytes == value.size_bytes
    parts, rest = divmod(value.size_bytes, held.value.size_bytes)
    return rest == 0 and parts <= _MOST_PARTS and parts & (parts - 1) == 0


def _why(value: ForwardValue) -> str:
    if value.key is None:
        return "carried by the loop: input of each iteration"
    where = " in each iteration of a loop" if value.loop is not None else ""
    if value.key.name is not None:
        return f"named{where}"
    return f"used by the backward pass{where}, and no policy leaves it out"
