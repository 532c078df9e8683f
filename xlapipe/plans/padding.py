"""Bytes that a TPU plan loses to padding: arrays are stored in whole tiles."""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.devices.platforms import platform_named
from xlapipe.plans.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.padded_shapes import padded_dims
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import Program


@dataclass(frozen=True, slots=True)
class Padding:
    """An argument or output of which a part is padding.

    Attributes:
      path: the leaf, e.g. `cache[0]['k']`; for an output that is written over an
        argument, the argument.
      size_bytes: size of the allocation.
      padding_bytes: of these, bytes that hold no element.
      dims, stored_dims: the dimensions, minor dimension last in both, and what they are padded to.
    """

    path: str
    size_bytes: int
    padding_bytes: int
    dims: tuple[int, ...]
    stored_dims: tuple[int, ...]


def find_padding(program: Program) -> tuple[Padding, ...]:
    """The leaves in device memory with padding, most padding first; empty on other platforms."""
    if not platform_named(program.plan.platform).pads_arrays:
        return ()
    rows = [
        Padding(path, allocation.size_bytes, padding, *padded_dims(value.shape))
        for path, allocation in _leaves(program)
        if (value := _leaf_value(allocation)) is not None
        and (padding := _padding_of(value, allocation)) > 0
    ]
    return tuple(sorted(rows, key=lambda row: (-row.padding_bytes, row.path)))


def parameter_padding_bytes(plan: Plan) -> int:
    """Bytes of padding in the parameters in device memory; 0 on other platforms."""
    if not platform_named(plan.platform).pads_arrays:
        return 0
    return sum(
        _padding_of(value, allocation)
        for allocation in plan.allocations_in(MemorySpace.HBM)
        if allocation.is_a(AllocationKind.PARAMETER)
        and (value := _leaf_value(allocation)) is not None
    )


def _leaves(program: Program) -> Iterator[tuple[str, BufferAllocation]]:
    plan, seen = program.plan, set[int]()
    in_hbm = {allocation.index for allocation in plan.device_allocations}
    allocations = [
        *(
            (leaf.path, plan.parameter_allocation(leaf.parameter_number))
            for leaf in program.arguments
        ),
        *(
            (leaf.path, plan.output_allocation(leaf.index, of=len(program.outputs)))
            for leaf in program.outputs
        ),
    ]
    for path, allocation in allocations:
        if allocation is not None and allocation.index not in seen:
            seen.add(allocation.index)
            if allocation.index in in_hbm:
                yield path, allocation


def _leaf_value(allocation: BufferAllocation) -> LogicalBuffer | None:
    """The value of the leaf: one that is as large as its allocation."""
    for value in allocation.values:
        if value.size_bytes == allocation.size_bytes and value.shape.is_tiled:
            return value
    return None


def _padding_of(value: LogicalBuffer, allocation: BufferAllocation) -> int:
    unpadded = value.shape.size_bytes
    return 0 if unpadded is None else allocation.size_bytes - unpadded
