"""`xlapipe show` for a terminal; readable without colour."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.text import Text

from xlapipe.dump.manifest import PATCHED
from xlapipe.plans import AllocationKind, BufferAllocation
from xlapipe.plans.donation import Donation
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.program import Program
from xlapipe.plans.second_call import second_call
from xlapipe.report.collectives import collective_lines
from xlapipe.report.donation import donation_lines
from xlapipe.report.host_memory import host_lines
from xlapipe.report.memory_spaces import space_lines
from xlapipe.report.plan_figures import DumpFigures, GemmRow, PlanFigures
from xlapipe.report.subjects import ShowOptions
from xlapipe.report.target_text import device_text, short_label

_MAX_ALLOCATIONS = 40
_MAX_VALUES = 3


def plan_lines(
    name: str,
    figures: PlanFigures,
    program: Program,
    donated: Sequence[Donation],
    options: ShowOptions,
) -> Iterator[Text]:
    """The parts of a plan that `options` names.

    Args:
      figures: the JSON of the same plan.
    """
    plan, everything = program.plan, options.everything
    yield Text(name, style="bold")
    if isinstance(figures, DumpFigures):
        versions = ", ".join(f"{key} {value}" for key, value in figures.versions.items())
        label = figures.autotuning if everything else short_label(figures.autotuning)
        yield Text(
            f"{figures.workload} for {device_text(figures.target, figures.topology)}, GEMM policy "
            f"{figures.gemm_policy}, {label}; {versions}"
        )
        if everything and figures.xla_patches:
            yield Text(f"  {PATCHED}: {', '.join(figures.xla_patches)}")
    if figures.refused is not None:
        yield Text(f"  REFUSED by XLA: {figures.refused:.400}", style="red")
    for note in figures.notes:
        yield Text(f"  note: {note}")
    if text := second_call(program):
        yield Text(f"  warning: {text}", style="yellow")
    if everything or options.allocations:
        yield from _total_lines(figures)
        yield from _allocation_lines(program)
    if everything or options.donation:
        yield from _alias_lines(program, listed_below=bool(donated))
        yield from map(Text, donation_lines(donated))
    if everything:
        yield from map(Text, host_lines(plan))
        yield from map(Text, space_lines(program))
    if figures.gemms is not None and (everything or options.gemms):
        yield from _gemm_lines(figures.gemms)
    if everything or options.collectives:
        lines = list(collective_lines(figures.collectives, figures.requested_collectives))
        yield from map(Text, lines or ["collectives: none"] * (not everything))
    if everything and figures.thunks is not None:
        counts = ", ".join(f"{count} {kind}" for kind, count in figures.thunks.items())
        yield Text("thunks", style="bold")
        yield Text(f"  {counts or 'none'}")


def _total_lines(figures: PlanFigures) -> Iterator[Text]:
    for key, value in asdict(figures.totals).items():
        yield Text(f"  {key:<24} {value:>18,}")
    if figures.live_range_peak_bytes is not None:
        yield Text(
            f"  {'live_range_peak_bytes':<24} {figures.live_range_peak_bytes:>18,}"
            f"  at position {figures.live_range_peak_position}"
        )


def _argument_paths(program: Program) -> dict[int | None, str]:
    return {leaf.parameter_number: leaf.path for leaf in program.arguments}


def _allocation_lines(program: Program) -> Iterator[Text]:
    yield Text("allocations, largest first", style="bold")
    plan, paths = program.plan, _argument_paths(program)
    space_names = {
        allocation.index: space
        for space in MemorySpace
        for allocation in plan.allocations_in(space)
    }
    ordered = sorted(
        plan.allocations, key=lambda allocation: (-allocation.size_bytes, allocation.index)
    )
    digits = max((len(f"{item.size_bytes:,} B") for item in ordered), default=0)
    for allocation in ordered[:_MAX_ALLOCATIONS]:
        kinds = ", ".join(allocation.kinds)
        if space_names.get(allocation.index) is not MemorySpace.HBM:
            kinds = f"{str(space_names[allocation.index]).upper()}: {kinds}"
        number = allocation.parameter_number
        if number is not None:
            parameter = f"parameter {number} {paths.get(number, '')}".strip()
            kinds = kinds.replace("parameter", parameter, 1)
        size = f"{allocation.size_bytes:,} B"
        yield Text(f"  {allocation.index:>5} {size:>{digits}}  {kinds}: {_contents(allocation)}")
    if len(ordered) > _MAX_ALLOCATIONS:
        yield Text(f"  … and {len(ordered) - _MAX_ALLOCATIONS} smaller ones (--json lists all)")


def _contents(allocation: BufferAllocation) -> str:
    if allocation.is_a(AllocationKind.PARAMETER) and len(allocation.values) == 1:
        return allocation.values[0].shape.text
    ordered = sorted(allocation.values, key=lambda value: -value.size_bytes)
    text = "; ".join(f"{value.name} {value.shape}" for value in ordered[:_MAX_VALUES])
    return text + (f"; … {len(ordered)} values" if len(ordered) > _MAX_VALUES else "")


def _alias_lines(program: Program, *, listed_below: bool) -> Iterator[Text]:
    """The number of aliases, and each of them unless the donations list them."""
    plan = program.plan
    yield Text(f"aliases: {len(plan.aliases) or 'none'}", style="bold")
    if listed_below:
        return
    paths = _argument_paths(program)
    outputs = {leaf.index: leaf.path for leaf in program.outputs}
    for alias in plan.aliases:
        index, number = alias.output_index, alias.parameter_number
        output = outputs.get(index[0]) if index else None
        if output is None:
            output = "an output" if index is None else f"output {list(index)}"
        yield Text(f"  parameter {number} {paths.get(number, '')} -> {output}")


def _gemm_lines(gemms: Sequence[GemmRow]) -> Iterator[Text]:
    """Products of equal backends, shapes and lines in one row."""
    yield Text(f"gemms: {len(gemms) or 'none'}", style="bold")
    groups: dict[tuple[str, ...], list[GemmRow]] = {}
    for gemm in gemms:
        shapes = " × ".join(map(str, gemm.shapes[:-1])) + f" -> {gemm.shapes[-1]}"
        groups.setdefault((str(gemm.backend), shapes, str(gemm.source or "")), []).append(gemm)
    for (backend, shapes, source), group in groups.items():
        names = group[0].instruction
        if len(group) > 1:
            names = f"{len(group)} such as {names}"
        yield Text(f"  {backend:<12} {names}: {shapes}  {source}".rstrip())
