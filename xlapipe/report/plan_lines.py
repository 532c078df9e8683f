"""`xlapipe show` for a terminal; readable without colour."""

from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from xlapipe.dump.manifest import PATCHED, Manifest
from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.plans.donation import donations
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.program import Program
from xlapipe.plans.second_call import second_call
from xlapipe.report.collective_lines import collective_lines
from xlapipe.report.donation_lines import donation_lines
from xlapipe.report.memory_spaces import host_lines, space_lines
from xlapipe.report.plan_page import gemm_table
from xlapipe.report.subjects import ShowOptions
from xlapipe.report.target_text import device_text, short_label
from xlapipe.report.time_figures import step_time
from xlapipe.report.time_lines import time_lines
from xlapipe.report.xla_subject import XlaSubject

_MAX_ALLOCATIONS = 40
_MAX_VALUES = 3


def plan_lines(opened: XlaSubject, options: ShowOptions) -> Iterator[Text]:
    """The parts of a plan that `options` names."""
    program, plan, everything = opened.program, opened.plan, options.everything
    yield Text(opened.name, style="bold")
    if opened.dump is not None:
        yield from _manifest_lines(opened.dump.manifest, everything=everything)
    for note in opened.notes:
        yield Text(f"  note: {note}")
    if text := second_call(program):
        yield Text(f"  warning: {text}", style="yellow")
    if everything or options.allocations:
        yield from _total_lines(plan)
        yield from _allocation_lines(program)
    if everything or options.donation:
        donated = donations(program)
        yield from _alias_lines(program, listed_below=bool(donated))
        yield from map(Text, donation_lines(donated))
    if everything:
        yield from map(Text, host_lines(plan))
        yield from map(Text, space_lines(program))
    if plan.module is not None and (everything or options.gemms):
        yield from _gemm_lines(opened)
    if everything or options.collectives:
        lines = list(collective_lines(opened))
        yield from map(Text, lines or ["collectives: none"] * (not everything))
    if everything and plan.thunk_counts is not None:
        counts = ", ".join(f"{count} {kind}" for kind, count in plan.thunk_counts.items())
        yield Text("thunks", style="bold")
        yield Text(f"  {counts or 'none'}")
    if options.time:
        yield from map(Text, time_lines(step_time(opened)))


def _manifest_lines(manifest: Manifest, *, everything: bool) -> Iterator[Text]:
    versions = ", ".join(f"{key} {value}" for key, value in manifest.versions.items())
    label = manifest.autotuning if everything else short_label(manifest.autotuning)
    yield Text(
        f"{manifest.workload} for {device_text(manifest.target, manifest.topology)}, GEMM policy "
        f"{manifest.gemm_policy}, {label}; {versions}"
    )
    if everything and manifest.xla_patches:
        yield Text(f"  {PATCHED}: {', '.join(manifest.xla_patches)}")
    if manifest.refused is not None:
        yield Text(f"  REFUSED by XLA: {manifest.refused:.400}", style="red")


def _total_lines(plan: Plan) -> Iterator[Text]:
    for key, value in asdict(plan.totals).items():
        yield Text(f"  {key:<24} {value:>18,}")
    live = plan.live_ranges
    if live is not None and live.live_range_peak_bytes is not None:
        yield Text(
            f"  {'live_range_peak_bytes':<24} {live.live_range_peak_bytes:>18,}"
            f"  at position {live.live_range_peak_position}"
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


def _gemm_lines(opened: XlaSubject) -> Iterator[Text]:
    """Products of equal backends, shapes and lines in one row."""
    yield Text(f"gemms: {len(opened.plan.gemms) or 'none'}", style="bold")
    for names, backend, shapes, _, source in gemm_table(opened.plan).rows:
        yield Text(f"  {backend!s:<12} {names}: {shapes}  {source}".rstrip())
