"""The figures of one plan, which JSON, the terminal, Markdown and HTML render."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.topology import Topology
from xlapipe.dump.dump import Dump
from xlapipe.dump.opened import Opened
from xlapipe.plans import (
    AllocationKind,
    LogicalBuffer,
    Plan,
    SourceLine,
    Totals,
)
from xlapipe.plans.compile_times import Copies, PassSeconds, largest_cause, source_of_kernel
from xlapipe.plans.copies import find_moves
from xlapipe.plans.donation import donations
from xlapipe.plans.gemms import GemmBackend
from xlapipe.plans.host_transfers import HostTransfer, find_host_transfers
from xlapipe.plans.memory_spaces import MemorySpace, space_of
from xlapipe.plans.missing_memory import MissingMemory
from xlapipe.plans.once import once_per_object
from xlapipe.plans.padding import Padding, find_padding
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, RequestedCollective
from xlapipe.plans.second_call import Recompile, recompiles
from xlapipe.plans.shapes import Shape
from xlapipe.report.collectives import CollectiveRow, collective_rows
from xlapipe.report.donation import DonationRow, donation_row
from xlapipe.report.memory_spaces import MoveRow, SpaceRow, move_row, space_rows
from xlapipe.report.overview.overview import Overview
from xlapipe.report.records import row_of
from xlapipe.report.time_figures import StepTime, step_time


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """One allocation."""

    index: int
    size_bytes: int
    kinds: tuple[AllocationKind, ...]
    parameter_number: int | None
    color: int
    space: MemorySpace
    values: tuple[LogicalBuffer, ...]


@dataclass(frozen=True, slots=True)
class AliasRow:
    """An output that is written over a parameter."""

    parameter_number: int
    output_index: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class GemmRow:
    """One matrix product; `shapes` are those of the operands and, last, of the result."""

    instruction: str
    backend: GemmBackend
    shapes: tuple[Shape, ...]
    op_name: str | None
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call whose memory XLA decides only on the device."""

    instruction: str
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class CallbackRow(CallRow):
    """A call back into Python on the host."""

    op_name: str | None


@dataclass(frozen=True, slots=True)
class CompiledKernelRow:
    """What the machine code of a kernel took; its name and line are None if they are unknown."""

    kernel: str | None
    llvm_seconds: float
    ptxas_seconds: float
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class CompileTimeRow:
    """What the compile took.

    Attributes:
      seconds, cpu_seconds: wall and CPU time of all stages.
      stages: wall time by stage.
      kernels: those whose code took longest first, over all threads.
    """

    machine: str
    seconds: float
    cpu_seconds: float
    stages: Mapping[str, float]
    passes: tuple[PassSeconds, ...]
    kernels: tuple[CompiledKernelRow, ...]
    copies: Copies | None
    largest_cause: str | None


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """The JSON of `xlapipe show` for files that XLA wrote; what they do not hold is None.

    Bytes are ints on one device, shapes are as XLA prints them.

    Attributes:
      overview: overview of a dump or files that were opened.
      time: None also if it was not asked for.
    """

    totals: Totals
    on_tpu: bool
    spaces: Mapping[str, SpaceRow]
    live_range_peak_bytes: int | None
    live_range_peak_position: int | None
    allocations: tuple[AllocationRow, ...]
    aliases: tuple[AliasRow, ...]
    gemms: tuple[GemmRow, ...] | None
    collectives: tuple[CollectiveRow, ...] | None
    host_transfers: Sequence[HostTransfer]
    moves: tuple[MoveRow, ...]
    host_callbacks: tuple[CallbackRow, ...]
    calls_without_workspace: tuple[CallRow, ...]
    untuned_calls: tuple[str, ...]
    missing_memory: Sequence[MissingMemory]
    thunks: Mapping[str, int] | None
    notes: Sequence[str]
    xla_patches: tuple[str, ...] | None = None
    target: str | None = None
    topology: str | None = None
    mesh: Mapping[str, int] | None = None
    tuned: bool | None = None
    refused: str | None = None
    recompiles: tuple[Recompile, ...] | None = None
    compile_time: CompileTimeRow | None = None
    donations: tuple[DonationRow, ...] | None = None
    requested_collectives: tuple[RequestedCollective, ...] | None = None
    padding: Sequence[Padding] = ()
    overview: Overview | None = None
    time: StepTime | None = None


@dataclass(frozen=True, kw_only=True)
class DumpFigures(PlanFigures):
    """The JSON of `xlapipe show` for a dump of xlapipe, whose manifest has more."""

    autotuning: str
    workload: str
    gemm_policy: str
    versions: Mapping[str, str]
    options: Mapping[str, str]
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]


def plan_figures(plan: Plan) -> PlanFigures:
    """The figures of a plan alone."""
    live = plan.live_ranges
    platform = platform_named(plan.platform)
    return PlanFigures(
        totals=plan.totals,
        on_tpu=platform.has_chip_memory,
        spaces=space_rows(plan),
        live_range_peak_bytes=live.live_range_peak_bytes if live is not None else None,
        live_range_peak_position=live.live_range_peak_position if live is not None else None,
        allocations=tuple(
            row_of(AllocationRow, allocation, space=space_of(allocation.color, platform))
            for allocation in plan.allocations
        ),
        aliases=tuple(row_of(AliasRow, alias) for alias in plan.aliases),
        gemms=(
            None if plan.module is None else tuple(row_of(GemmRow, gemm) for gemm in plan.gemms)
        ),
        collectives=collective_rows(plan.collectives),
        host_transfers=find_host_transfers(plan),
        moves=tuple(map(move_row, find_moves(plan))),
        host_callbacks=tuple(
            CallbackRow(call.name, call.source, call.op_name) for call in plan.host_callbacks
        ),
        calls_without_workspace=tuple(
            CallRow(call.name, call.source) for call in plan.unfinished_calls
        ),
        untuned_calls=tuple(call.name for call in plan.untuned_calls),
        missing_memory=plan.missing_memory,
        thunks=plan.thunk_counts,
        notes=plan.notes,
    )


def dump_figures(dump: Dump) -> DumpFigures:
    """The figures of a plan with the contents of its manifest."""
    manifest = dump.manifest
    compiled, requested = _collectives_of_dump(dump)
    plan = plan_figures(dump.plan)
    return DumpFigures(
        **{
            **{item.name: getattr(plan, item.name) for item in fields(plan)},
            "notes": (*dump.plan.notes, *manifest.notes),
            "target": manifest.target,
            "topology": manifest.topology,
            "mesh": dict(manifest.mesh) if manifest.mesh is not None else None,
            "tuned": manifest.tuned_or_none,
            "refused": manifest.refused,
            "recompiles": recompiles(dump.program),
            "compile_time": _compile_time(dump),
            "xla_patches": manifest.xla_patches,
            "donations": tuple(map(donation_row, donations(dump.program))),
            "collectives": compiled,
            "requested_collectives": requested,
            "padding": find_padding(dump.program),
        },
        autotuning=manifest.autotuning,
        workload=manifest.workload,
        gemm_policy=manifest.gemm_policy,
        versions=manifest.versions,
        options=manifest.options,
        arguments=manifest.arguments,
        outputs=manifest.outputs,
    )


def _compile_time(dump: Dump) -> CompileTimeRow | None:
    times = dump.compile_times
    if times is None:
        return None
    rows = [
        CompiledKernelRow(
            kernel.kernel or None,
            kernel.llvm,
            kernel.ptxas,
            source_of_kernel(dump.plan, kernel.kernel) if kernel.kernel else None,
        )
        for kernel in sorted(times.kernels, key=lambda kernel: -kernel.seconds)
    ]
    return CompileTimeRow(
        times.machine,
        times.wall_seconds,
        times.cpu_seconds,
        times.stage_seconds,
        times.passes,
        tuple(rows),
        times.copies,
        largest_cause(times, dump.plan) or None,
    )


def opened_figures(opened: Opened, *, with_time: bool = True) -> PlanFigures:
    """The figures of a dump of xlapipe, or of files that XLA wrote.

    Args:
      with_time: whether to compute `time`, which is None otherwise.
    """
    time = step_time(opened) if with_time else None
    own = plan_figures(opened.plan) if opened.dump is None else dump_figures(opened.dump)
    return replace(own, overview=Overview(opened), time=time)


@once_per_object
def figures_of(opened: Opened) -> PlanFigures:
    """All figures of a dump, with its time."""
    return opened_figures(opened)


Rows = tuple[CollectiveRow, ...] | None
Requested = tuple[RequestedCollective, ...] | None


def collectives_of(opened: Opened) -> tuple[Rows, Requested]:
    """The collectives of the compiled module and of the traced program; None if unknown."""
    if opened.dump is None:
        return collective_rows(opened.plan.collectives), None
    return _collectives_of_dump(opened.dump)


def _collectives_of_dump(dump: Dump) -> tuple[Rows, Requested]:
    manifest = dump.manifest
    gpus = (
        Topology.parse(manifest.topology).gpus
        if manifest.topology is not None and not platform_named(manifest.platform).has_chip_grid
        else None
    )
    compiled = collective_rows(dump.plan.collectives, gpus)
    return compiled, manifest.requested_collectives
