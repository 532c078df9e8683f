"""From a replay to an InductorPlan: totals, arguments, outputs, aliases, kernels' lines."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.derive import derive
from xlapipe.inductor.findings import IrFinder, WrapperFinder
from xlapipe.inductor.gemms_and_collectives import (
    collectives,
    gemms,
    ir_launches,
    ir_resized,
    ir_returned,
)
from xlapipe.inductor.graph_files import GraphFiles
from xlapipe.inductor.inductor_plan import (
    FindingKind,
    InductorArgument,
    InductorCollective,
    InductorFinding,
    InductorKernel,
    InductorOutput,
    InductorPlan,
    InductorTotals,
)
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.layouts import Layout, sum_if_known
from xlapipe.inductor.wrapper.launches import Launch
from xlapipe.plans.buffers import AllocationKind, BufferAllocation, InputOutputAlias


def plan_of_wrapper(
    files: GraphFiles,
    replay: Replay,
    *,
    ir: IrGraph | None,
    saved: int | None,
    notes: Sequence[str],
) -> InductorPlan:
    """The plan of wrapper code after its replay."""
    returned = {tensor.storage for _, tensor in replay.returned if tensor is not None}
    return _plan(
        files,
        replay,
        replay.launches,
        returned,
        saved,
        exact=True,
        findings=tuple(WrapperFinder(replay).find()),
        notes=(*notes, *replay.notes),
        resized_storages=tuple(replay.resized) or (ir_resized(ir) if ir is not None else ()),
    )


def plan_of_ir(files: GraphFiles, graph: IrGraph, layouts: Mapping[str, Layout]) -> InductorPlan:
    """The plan that liveness gives for IR alone."""
    replay = derive(graph, layouts)
    return _plan(
        files,
        replay,
        tuple(ir_launches(graph, replay.kernels)),
        ir_returned(graph),
        None,
        exact=False,
        findings=tuple(IrFinder(graph).find()),
        notes=(
            "derived from IR by liveness and Inductor's rule for in-place reuse: what the wrapper "
            "keeps longer, and arguments that the caller gives away, are not in it",
            *replay.notes,
        ),
        resized_storages=ir_resized(graph),
    )


def _plan(
    files: GraphFiles,
    replay: Replay,
    launches: Sequence[Launch],
    returned: Set[int],
    saved: int | None,
    *,
    findings: tuple[InductorFinding, ...],
    **stated: Any,
) -> InductorPlan:
    exchanged = tuple(collectives(launches, replay.kernels, returned))
    allocations, index = replay.allocations()
    arguments = tuple(_arguments(replay, index))
    outputs = tuple(_outputs(replay, index, saved))
    return InductorPlan(
        where=files.where,
        graph=files.name,
        kind=files.kind,
        totals=_totals(replay, allocations, arguments, outputs, saved),
        allocations=allocations,
        lifetimes=replay.lifetimes(),
        live_ranges=tuple(replay.live_ranges()),
        arguments=arguments,
        outputs=outputs,
        kernels=tuple(replay.kernels),
        aliases=tuple(_aliases(arguments, outputs, allocations)),
        unknown=tuple(replay.unknown),
        gemms=tuple(gemms(launches)),
        collectives=exchanged,
        findings=(*findings, *_unused(exchanged, replay.kernels)),
        peak_position=replay.peak_position,
        peak_line=replay.peak_line,
        **stated,
    )


def _arguments(replay: Replay, index: Mapping[int, int]) -> Iterator[InductorArgument]:
    for number, argument in enumerate(replay.arguments):
        tensor, layout = argument.tensor, argument.layout
        if tensor is None:
            continue
        storage = replay.storages[tensor.storage]
        yield InductorArgument(
            number=number,
            name=argument.name,
            layout=layout,
            size_bytes=layout.element_bytes if layout is not None else storage.size_bytes,
            given_away=argument.given,
            mutated=storage.mutated,
            allocation=index.get(tensor.storage),
        )


def _outputs(
    replay: Replay, index: Mapping[int, int], saved: int | None
) -> Iterator[InductorOutput]:
    first_saved = len(replay.returned) - (saved or 0)
    arguments = {
        argument.name: (number, argument.tensor)
        for number, argument in enumerate(replay.arguments)
        if argument.tensor is not None
    }
    for place, (name, tensor) in enumerate(replay.returned):
        if tensor is None:
            continue
        number, given = arguments.get(name, (None, None))
        same = given is not None and given.storage == tensor.storage
        layout = tensor.layout
        yield InductorOutput(
            index=place,
            name=name,
            layout=layout,
            size_bytes=layout.element_bytes if layout is not None else None,
            allocation=index.get(tensor.storage),
            argument=number if same else None,
            saved=saved is not None and place >= first_saved,
        )


def _totals(
    replay: Replay,
    allocations: Sequence[BufferAllocation],
    arguments: Sequence[InductorArgument],
    outputs: Sequence[InductorOutput],
    saved: int | None,
) -> InductorTotals:
    def size(indices: Iterator[int | None]) -> int:
        return sum(allocations[at].size_bytes for at in {i for i in indices if i is not None})

    computed = [output for output in outputs if output.argument is None]
    returned = {output.allocation for output in computed if not output.saved}
    kept = (o.allocation for o in computed if o.saved and o.allocation not in returned)
    sizes = [argument.size_bytes if replay.counts(argument.layout) else 0 for argument in arguments]
    live_out = [a for a in allocations if a.is_a(AllocationKind.MAYBE_LIVE_OUT)]
    aliased = [a for a in live_out if a.is_a(AllocationKind.PARAMETER)]
    constants = [a for a in allocations if a.is_a(AllocationKind.CONSTANT)]
    return InductorTotals(
        own_peak_bytes=replay.peak_bytes,
        argument_bytes=sum_if_known(sizes),
        peak_with_arguments_bytes=None if None in sizes else replay.all_peak_bytes,
        output_bytes=size(output.allocation for output in computed),
        unknown_allocations=len(replay.unknown),
        given_argument_bytes=size(a.allocation for a in arguments if a.given_away),
        saved_bytes=None if saved is None else size(kept),
        end_bytes=replay.own_bytes,
        live_out_bytes=sum(allocation.size_bytes for allocation in live_out),
        aliased_bytes=sum(allocation.size_bytes for allocation in aliased),
        constant_bytes=sum(allocation.size_bytes for allocation in constants),
    )


def _aliases(
    arguments: Sequence[InductorArgument],
    outputs: Sequence[InductorOutput],
    allocations: Sequence[BufferAllocation],
) -> Iterator[InputOutputAlias]:
    """Outputs in the memory of an argument, and arguments that are changed in place."""
    by_allocation = {a.allocation: a.number for a in arguments if a.allocation is not None}
    aliased: set[int] = set()
    for output in outputs:
        if output.argument is None and output.allocation in by_allocation:
            number = by_allocation[output.allocation]
            aliased.add(number)
            yield InputOutputAlias(number, (output.index,))
    for argument in arguments:
        if argument.mutated and argument.number not in aliased and not argument.given_away:
            yield InputOutputAlias(argument.number, None)


def _unused(
    collectives: Sequence[InductorCollective], kernels: Sequence[InductorKernel]
) -> Iterator[InductorFinding]:
    for collective in collectives:
        if not collective.used:
            yield InductorFinding(
                FindingKind.UNUSED_COLLECTIVE,
                kernels[collective.start].node or kernels[collective.start].name,
                collective.output_bytes,
                f"nothing computes with the result of this {collective.kind}",
                kernels[collective.start].line,
                collective.source,
            )
