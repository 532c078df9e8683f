"""XLA's plan as a side of a comparison with another compiler's."""

from collections.abc import Iterator
from dataclasses import replace

from xlapipe.differences.compilers.compiler_side import (
    CompilerSide,
    exchanges_of,
    products_of,
    read_array,
)
from xlapipe.differences.compilers.tensor_leaves import TensorLeaf
from xlapipe.dump.dump import Dump
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.plans.occupancy import Occupancy

_CONTAINERS = frozenset({"kCommandBuffer", "kConditional", "kSequential", "kWhile"})


def xla_side(opened: XlaFiles) -> CompilerSide:
    plan, totals = opened.plan, opened.plan.totals
    without_parameters = replace(
        plan,
        allocations=tuple(
            allocation
            for allocation in plan.allocations
            if not allocation.is_a(AllocationKind.PARAMETER)
        ),
    )
    reserved = totals.total_allocation_bytes - totals.parameter_bytes - totals.thread_local_bytes
    arguments, outputs = tuple(_arguments(opened)), tuple(_outputs(opened))
    return CompilerSide(
        name=f"{opened.title} ({opened.autotuning})" if isinstance(opened, Dump) else opened.title,
        basis="XLA's buffer assignment",
        arguments=arguments,
        outputs=outputs,
        own_peak_bytes=reserved,
        in_use_bytes=Occupancy(without_parameters).peak_bytes,
        argument_bytes=totals.parameter_bytes,
        output_bytes=totals.live_out_bytes - totals.aliased_bytes,
        kept_bytes=None,
        reused_bytes=totals.aliased_bytes,
        unknown_calls=0,
        launches=_launches(plan),
        products=products_of(plan.gemms),
        exchanges=exchanges_of((item.kind, item.output_bytes) for item in plan.collectives or ()),
    )


def _launches(plan: Plan) -> int | None:
    """The number of thunks that launch something; those that only hold others are left out."""
    counts = plan.thunk_counts
    if counts is None:
        return None
    return sum(count for kind, count in counts.items() if kind not in _CONTAINERS)


def _arguments(opened: XlaFiles) -> Iterator[TensorLeaf]:
    """Parameters on one device, with the author's names if the dump has them."""
    plan = opened.plan
    aliased = {alias.parameter_number for alias in plan.aliases}
    leaves = opened.arguments
    dtype: str | None
    shape: tuple[int | str, ...] | None
    for leaf in leaves:
        local = plan.parameter_allocation(leaf.parameter_number)
        dtype_and_shape = _shape_in(local) if local is not None else None
        dtype, shape = dtype_and_shape or (leaf.dtype, leaf.shape)
        reused = leaf.parameter_number in aliased
        yield TensorLeaf(leaf.path, dtype, shape, leaf.size_bytes, reused)
    if not leaves:
        parameters = [a for a in plan.allocations if a.parameter_number is not None]
        for allocation in sorted(parameters, key=lambda a: a.parameter_number or 0):
            dtype, shape = _shape_in(allocation) or (None, None)
            number, size = allocation.parameter_number, allocation.size_bytes
            name = f"parameter {number}"
            yield TensorLeaf(name, dtype, shape, size, number in aliased)


def _shape_in(allocation: BufferAllocation) -> tuple[str, tuple[int | str, ...]] | None:
    """The shape of the value that fills an allocation from its start."""
    for value in allocation.values:
        if value.offset_bytes == 0 and value.size_bytes == allocation.size_bytes:
            return read_array(value.shape.text)
    return None


def _outputs(opened: XlaFiles) -> Iterator[TensorLeaf]:
    plan = opened.plan
    arrays = plan.result_shape.arrays if plan.result_shape is not None else ()
    aliased = {alias.output_index for alias in plan.aliases}
    names = {leaf.index: leaf.path for leaf in opened.outputs}
    if not arrays:
        for leaf in opened.outputs:
            yield TensorLeaf(leaf.path, leaf.dtype, leaf.shape, leaf.size_bytes)
    for index, array in enumerate(arrays):
        dtype_and_shape = read_array(array.text)
        if dtype_and_shape is not None:
            reused = ((index,) if len(arrays) > 1 else ()) in aliased
            name = names.get(index, f"output {index}")
            yield TensorLeaf(name, *dtype_and_shape, array.size_bytes, reused)
