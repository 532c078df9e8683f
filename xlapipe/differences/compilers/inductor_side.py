"""Inductor's graphs as sides of a comparison: each alone, and all one after the other."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from xlapipe.differences.compilers.compiler_side import (
    CompilerSide,
    exchanges_of,
    products_of,
)
from xlapipe.differences.compilers.tensor_leaves import TensorLeaf
from xlapipe.inductor.inductor_plan import GraphKind, InductorPlan
from xlapipe.inductor.layouts import Layout, sum_if_known
from xlapipe.inductor.reader import InductorDump


def inductor_sides(dump: InductorDump) -> tuple[CompilerSide, ...]:
    """A side for each graph, and one for all of them if there are several."""
    alone = tuple(_graph_side(dump, plan) for plan in dump.plans)
    return alone if len(dump.plans) == 1 else (*alone, _whole_side(dump, alone))


def _graph_side(dump: InductorDump, plan: InductorPlan) -> CompilerSide:
    totals = plan.totals
    in_place = {alias.parameter_number for alias in plan.aliases}
    return CompilerSide(
        name=f"{dump.path}: {plan.graph}" if len(dump.plans) > 1 else str(dump.path),
        basis=plan.basis,
        arguments=tuple(
            _leaf(argument.name, argument.layout, argument.size_bytes, reused)
            for argument in plan.arguments
            for reused in [argument.given_away or argument.number in in_place]
        ),
        outputs=tuple(_outputs(plan)),
        own_peak_bytes=totals.own_peak_bytes,
        in_use_bytes=totals.own_peak_bytes,
        argument_bytes=totals.argument_bytes,
        output_bytes=totals.output_bytes,
        kept_bytes=totals.saved_bytes,
        reused_bytes=totals.given_argument_bytes + totals.aliased_bytes,
        unknown_calls=totals.unknown_allocations,
        launches=len(plan.kernels),
        products=products_of(plan.gemms),
        exchanges=exchanges_of((item.kind, item.output_bytes) for item in plan.collectives),
        notes=plan.notes,
    )


def _whole_side(dump: InductorDump, alone: Sequence[CompilerSide]) -> CompilerSide:
    """One step: forward and inference graphs, then backward graphs."""
    left = list(accumulate((plan.totals.end_bytes for plan in dump.plans), initial=0))
    held = [
        before + plan.totals.own_peak_bytes for before, plan in zip(left, dump.plans, strict=False)
    ]
    peak = max(held)
    is_backward = [plan.kind == GraphKind.BACKWARD for plan in dump.plans]
    firsts = [side for side, backward in zip(alone, is_backward, strict=True) if not backward]
    # A backward graph takes what the forward graph kept, and the tangents.
    arguments = tuple(
        leaf
        for side, backward in zip(alone, is_backward, strict=True)
        for leaf in side.arguments
        if not backward or leaf.name.startswith("tangents_")
    )
    outputs = tuple(leaf for side in alone for leaf in side.outputs)
    return CompilerSide(
        name=f"{dump.path}: {len(alone)} graphs, one after the other",
        basis=alone[0].basis,
        arguments=arguments,
        outputs=outputs,
        own_peak_bytes=peak,
        in_use_bytes=peak,
        argument_bytes=sum_if_known(leaf.size_bytes for leaf in arguments),
        output_bytes=sum_if_known(leaf.size_bytes for leaf in outputs if not leaf.reused),
        kept_bytes=sum_if_known(side.kept_bytes for side in firsts),
        with_backward=any(is_backward),
        reused_bytes=sum(leaf.size_bytes or 0 for leaf in arguments if leaf.reused),
        unknown_calls=sum(side.unknown_calls for side in alone),
        launches=sum(len(plan.kernels) for plan in dump.plans),
        products=products_of(gemm for plan in dump.plans for gemm in plan.gemms),
        exchanges=exchanges_of(
            (item.kind, item.output_bytes) for plan in dump.plans for item in plan.collectives
        ),
        notes=tuple(dict.fromkeys(note for side in alone for note in side.notes)),
    )


def _outputs(plan: InductorPlan) -> Iterator[TensorLeaf]:
    """What the graph computes for its caller, not what it saves or hands through.

    Arguments that it changes in place come last: a step of JAX returns them.
    """
    shared = {alias.output_index for alias in plan.aliases}
    for output in plan.outputs:
        if not output.saved and output.argument is None:
            reused = (output.index,) in shared
            yield _leaf(output.name, output.layout, output.size_bytes, reused)
    changed = {alias.parameter_number for alias in plan.aliases if alias.output_index is None}
    for argument in plan.arguments:
        if argument.number in changed:
            yield _leaf(argument.name, argument.layout, argument.size_bytes, True)


def _leaf(name: str, layout: Layout | None, size: int | None, reused: bool) -> TensorLeaf:
    if layout is None:
        return TensorLeaf(name, None, None, size, reused)
    return TensorLeaf(name, layout.dtype, layout.shape, size, reused)
