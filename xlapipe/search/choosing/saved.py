"""What a step's forward pass keeps for the backward pass, beside the plan: `xlapipe saved`."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.lowering.forward_graph import ForwardGraph, ForwardValue
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.devices.targets.device import Device
from xlapipe.dump.readers import read_path
from xlapipe.errors import XlapipeError
from xlapipe.expect import Offloaded
from xlapipe.plans import Plan
from xlapipe.plans.occupancy import CountedValue
from xlapipe.plans.program import KeptIn, Program
from xlapipe.registry import find_workload
from xlapipe.report.records import named
from xlapipe.search.candidate import Candidate, StepChange, job_of
from xlapipe.search.choosing.at_peak import held_at_peak
from xlapipe.search.choosing.choose import forward_graph_at, target_device
from xlapipe.search.choosing.compiles import Compiles
from xlapipe.search.choosing.policies import (
    PolicyPlace,
    applicable,
    block_changes,
    chosen_values,
    no_place_error,
    places_of,
)
from xlapipe.search.choosing.search import keep_within, seconds_of
from xlapipe.search.rows import SearchSettings
from xlapipe.time.recomputed import relative

# Compiles for each place until one frees enough, each of at least so many times the bytes before.
_MOST_TRIES, _LEAST_STEP = 4, 1.25


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
class OtherForm:
    """A value that the plan keeps at the peak in another form than the forward pass computes it.

    XLA may keep the partial sums of a split matrix product, or a transposed or fused value.

    Attributes:
      name: XLA's.
      shape: with XLA's element type.
      size_bytes: on one device.
    """

    name: str
    shape: str
    source: str | None
    size_bytes: int
    allocation: int


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The cheapest change that frees so many bytes, which was compiled.

    Attributes:
      freed_bytes: less than in the plan as written; 0 or less if nothing is freed.
      seconds: added to the predicted time; None if unknown.
      network: its name; empty for a step without collectives.
    """

    change: StepChange
    freed_bytes: int
    total_bytes: int
    seconds: float | None
    network: str = ""

    def json_fields(self) -> dict[str, Any]:
        """The change by its text and code."""
        change = {"change": self.change.text, "code": self.change.code}
        return {
            **change,
            **named(self, "freed_bytes", "total_bytes"),
            "added_seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True)
class SavedValues:
    """What is kept.

    Attributes:
      rows: most bytes first.
      other_forms: likewise.
      total_bytes: total of the plan.
      saved_bytes: what the plan keeps for the backward pass at its peak, on one device, as
        `xlapipe show` prints it; arguments and outputs are kept anyway.
      arguments: number of arguments that the backward pass reads, which are kept anyway.
      arguments_bytes: bytes of these arguments, on all devices.
      names: that the step gives.
      unmatched: names of a policy that the step does not give.
      not_offloaded: for each name whose values a policy offloads and the plan keeps on the device
        all the same, what was found.
      freed: changes that free as many bytes as asked for, as `freeing` has them.
    """

    workload: str
    target: str
    rows: tuple[SavedRow, ...]
    other_forms: tuple[OtherForm, ...]
    total_bytes: int
    saved_bytes: int
    arguments: int
    arguments_bytes: int
    names: tuple[str, ...]
    unmatched: tuple[str, ...] = ()
    not_offloaded: Mapping[str, str] = field(default_factory=dict)
    freed: tuple[Freed, ...] = ()


def saved(
    workload: str,
    target: str,
    settings: CompileSettings,
    *,
    policy_names: Sequence[str] = (),
    free_bytes: int | None = None,
) -> SavedValues:
    """Compiles the step as written, and lists what its forward pass keeps.

    Args:
      policy_names: names that a policy of the step has.
      free_bytes: to be freed by a policy; None for none.

    Raises:
      XlapipeError: the compile failed, the step has no gradient, or as `freeing`.
    """
    with scratch_folder("saved-") as folder:
        note = folder / "graph.json"
        base = Candidate(find_workload(workload), target=target)
        job = job_of(base, settings, record=str(note))
        with compile_workload(job) as compiled:  # live ranges are in XLA's texts
            record = compiled.record
            program = Program(read_path(compiled.dump_folder), record)
        graph = forward_graph_at(note)
    if not graph.arguments_bytes and not any(value.needed for value in graph.values):
        raise XlapipeError(
            f"{workload}: the step has no gradient, so nothing is kept for a backward pass; fix: "
            "name a step that calls jax.grad or jax.value_and_grad"
        )
    devices = prod((record.mesh or {}).values())
    held = held_at_peak(graph.values, program.plan, several_devices=devices > 1)
    rows = _rows(graph, held.holder, target_device(target), devices)
    totals = program.plan.totals
    return SavedValues(
        workload=workload,
        target=target,
        rows=rows,
        other_forms=tuple(_other_form(other, program.plan) for other in held.others),
        total_bytes=totals.total_allocation_bytes - totals.thread_local_bytes,
        saved_bytes=held.counted_bytes,
        arguments=len(graph.arguments_bytes),
        arguments_bytes=sum(graph.arguments_bytes),
        names=graph.names,
        unmatched=tuple(name for name in policy_names if name not in graph.names),
        not_offloaded=_not_offloaded(program),
        freed=freeing(workload, target, settings, graph, free_bytes) if free_bytes else (),
    )


def freeing(
    workload: str, target: str, settings: CompileSettings, graph: ForwardGraph, free_bytes: int
) -> tuple[Freed, ...]:
    """For each place of a policy, the change with the least recomputation for so many bytes.

    If none of them frees enough, what recomputes whole blocks is compiled as well, until one does.

    Bytes of the forward pass are not those of the plan: XLA keeps values in other forms, and each
    device has a part of them. If a plan frees too few bytes, fewer are kept in another compile.

    Returns:
      Those that free enough first. The others are the last ones that were tried.

    Raises:
      XlapipeError: the step keeps less than `free_bytes`, no policy is possible, or no change
        compiles.
    """
    whole = places_of(graph)
    if not any(place.saved_bytes for place in whole):
        raise no_place_error(workload, [graph])
    whole, _ = applicable(workload, graph, whole)
    places = [place for place in whole if place.searched and place.saved_bytes >= free_bytes]
    if not places:
        most_bytes = max(place.saved_bytes for place in whole)
        raise XlapipeError(
            f"--free {free_bytes}: a policy decides about {most_bytes:,} B in one place; fix: give "
            "fewer bytes, a smaller batch, or more devices"
        )
    compiles = Compiles(SearchSettings(compile=settings, at_once=1))
    compiles.run([Candidate(find_workload(workload), target=target)])
    freed = [_freed_in(place, compiles, free_bytes) for place in places if compiles.rows]
    own = [item for item in freed if item is not None]
    own += _freed_by_blocks(whole, compiles, free_bytes) if compiles.rows else ()
    if not own:
        compiles.raise_first()
    return tuple(sorted(own, key=lambda item: (item.freed_bytes < free_bytes, item.seconds or 0)))


def _freed_by_blocks(
    places: Sequence[PolicyPlace], compiles: Compiles, free_bytes: int
) -> Iterator[Freed]:
    totals = [row.memory.total_bytes for row in compiles.rows]
    freed_bytes = totals[0] - min(totals)
    for change in block_changes(places):
        if freed_bytes >= free_bytes:
            return
        freed = _freed(change, compiles)
        if freed is not None:
            freed_bytes = max(freed_bytes, freed.freed_bytes)
            yield freed


def _freed_in(place: PolicyPlace, compiles: Compiles, free_bytes: int) -> Freed | None:
    """Compiles policies for a place until one frees enough; the last one, None if it failed."""
    freed, asked_bytes = None, free_bytes
    device = target_device(compiles.rows[0].candidate.target)
    for _ in range(_MOST_TRIES):
        kept = keep_within(place.values, place.saved_bytes - asked_bytes, device)
        tried = _freed(chosen_values(kept, place), compiles) if kept is not None else None
        if tried is None:
            break
        freed = tried
        if freed.freed_bytes >= free_bytes or asked_bytes == place.saved_bytes:
            break
        scale = free_bytes / freed.freed_bytes if freed.freed_bytes > 0 else 2.0
        asked_bytes = min(place.saved_bytes, int(asked_bytes * max(scale, _LEAST_STEP)))
    return freed


def _freed(change: StepChange, compiles: Compiles) -> Freed | None:
    """Compiles a change; None if that fails.

    Args:
      compiles: whose first row is the step as written.
    """
    written = compiles.rows[0]
    compiles.run([replace(written.candidate, change=change)])
    changed = compiles.rows[-1]
    if changed.candidate.change is not change:
        return None
    before, after = written.seconds_per_item, changed.seconds_per_item
    predicted, total_bytes = changed.memory.predicted, changed.memory.total_bytes
    return Freed(
        change=change,
        freed_bytes=written.memory.total_bytes - total_bytes,
        total_bytes=total_bytes,
        seconds=after - before if after is not None and before is not None else None,
        network=predicted.network_name if predicted is not None else "",
    )


def _not_offloaded(program: Program) -> dict[str, str]:
    offloaded = (value.name for value in program.facts.named_values if value.kept is KeptIn.HOST)
    violations = {name: Offloaded(name).check(program).violations for name in offloaded}
    return {
        name: f"{'; '.join(violation.found for violation in own)}; fix: {own[0].advice}"
        for name, own in violations.items()
        if own
    }


def _other_form(held: CountedValue, plan: Plan) -> OtherForm:
    source = plan.nearest_source(held.value.name)
    return OtherForm(
        name=held.value.name,
        shape=held.value.shape.without_layout,
        source=relative(str(source)) if source is not None else None,
        size_bytes=held.value.size_bytes,
        allocation=held.allocation.index,
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
