"""Inductor's graphs as sides of a comparison: each alone, and all one after the other."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from xlapipe.differences.compilers.compiler_side import (
    CompilerSide,
    HeldBytes,
    Waste,
    exchanges_of,
    read_product,
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
        kernels=plan.kernel_counts,
        held=tuple(_held(plan)),
        products=tuple(read_product(gemm) for gemm in plan.gemms),
        waste=tuple(_waste([plan])),
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
    worst = held.index(peak)
    before = left[worst]
    carried = [HeldBytes("left by the graphs before", before)] if before else []
    is_backward = list(map(_is_backward, dump.plans))
    firsts = [side for side, backward in zip(alone, is_backward, strict=True) if not backward]
    # A backward graph takes what the forward graph kept, and the tangents.
    arguments = tuple(
        leaf
        for side, backward in zip(alone, is_backward, strict=True)
        for leaf in side.arguments
        if not backward or leaf.name.startswith("tangents_")
    )
    outputs = tuple(leaf for side in alone for leaf in side.outputs)
    kernels = sum((Counter(side.kernels) for side in alone), Counter[str]())
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
        kernels=dict(sorted(kernels.items())),
        held=(*carried, *alone[worst].held),
        products=tuple(product for side in alone for product in side.products),
        waste=tuple(_waste(dump.plans)),
        exchanges=exchanges_of(
            (item.kind, item.output_bytes) for plan in dump.plans for item in plan.collectives
        ),
        notes=tuple(dict.fromkeys(note for side in alone for note in side.notes)),
    )


def _is_backward(plan: InductorPlan) -> bool:
    return plan.kind == GraphKind.BACKWARD


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


def _held(plan: InductorPlan) -> Iterator[HeldBytes]:
    for allocation in plan.held_at_peak:
        names = ", ".join(value.name for value in allocation.values[:3])
        shape = allocation.values[0].shape if allocation.values else ""
        yield HeldBytes(f"{names} {shape}".strip(), allocation.size_bytes)
    if plan.freed_at_peak_bytes:
        yield HeldBytes("arguments that are freed by then", -plan.freed_at_peak_bytes)


def _waste(plans: Iterable[InductorPlan]) -> Iterator[Waste]:
    sizes: dict[str, list[int | None]] = {}
    for plan in plans:
        for finding in plan.findings:
            sizes.setdefault(finding.kind.replace("_", " "), []).append(finding.size_bytes)
    for what, of_kind in sizes.items():
        yield Waste(what, len(of_kind), sum_if_known(of_kind))
