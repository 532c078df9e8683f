"""Modules in a form in which equal kernels have equal bytes, so that an archive has each once.

Lines of source and the simulation of the heap are left out. Instructions are numbered by position:
they have no ids, operands are distances, and the bodies of fusions have no names.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate, count, pairwise

from xlapipe.dump.readers.hlo_proto import (
    BufferAllocationProto,
    BufferAssignmentProto,
    HloModuleProto,
    HloProto,
)


def slim(module: bytes) -> bytes:
    """A serialised HloProto in the small form."""
    proto = HloProto.FromString(module)
    hlo, buffers = proto.hlo_module, proto.buffer_assignment
    buffers.DiscardUnknownFields()
    hlo.ClearField("stack_frame_index")
    numbers: dict[int, int] = {}
    for computation in hlo.computations:
        for instruction in computation.instructions:
            numbers[instruction.id] = len(numbers) + 1
    scheduled = set(_scheduled(hlo))
    for computation in hlo.computations:
        for instruction in computation.instructions:
            number = numbers[instruction.id]
            for others in (instruction.operand_ids, instruction.control_predecessor_ids):
                others[:] = [number - numbers[other] for other in others]
            instruction.ClearField("id")
            instruction.ClearField("metadata")
            if computation.id not in scheduled:
                instruction.ClearField("name")
        computation.root_id = number - numbers[computation.root_id]
    for sequence in hlo.schedule.sequences.values():
        order = [numbers[item] for item in sequence.instruction_ids]
        sequence.instruction_ids[:] = [after - before for before, after in pairwise((0, *order))]
    _number_buffers(buffers)
    for buffer in buffers.logical_buffers:
        buffer.defined_at.instruction_id = numbers[buffer.defined_at.instruction_id]
    return proto.SerializeToString(deterministic=True)


def whole(module: bytes) -> bytes:
    """A serialised HloProto from its small form; bodies' instructions are named by their number."""
    proto = HloProto.FromString(module)
    hlo, numbers = proto.hlo_module, count(1)
    for computation in hlo.computations:
        for instruction in computation.instructions:
            number = instruction.id = next(numbers)
            for others in (instruction.operand_ids, instruction.control_predecessor_ids):
                others[:] = [number - distance for distance in others]
            instruction.name = instruction.name or f"in_a_body.{number}"
        computation.root_id = number - computation.root_id
    for sequence in hlo.schedule.sequences.values():
        sequence.instruction_ids[:] = list(accumulate(sequence.instruction_ids))
    for number, buffer in enumerate(proto.buffer_assignment.logical_buffers, 1):
        buffer.id = number
    for number, assigned in enumerate(_assigned(proto.buffer_assignment), 1):
        assigned.logical_buffer_id = number
    return proto.SerializeToString(deterministic=True)


def _scheduled(hlo: HloModuleProto) -> Iterable[int]:
    """Ids of the computations whose instructions have names that kernels are known by."""
    return hlo.schedule.sequences or [item.id for item in hlo.computations]


def _assigned(buffers: BufferAssignmentProto) -> Iterator[BufferAllocationProto.Assigned]:
    for allocation in buffers.buffer_allocations:
        yield from allocation.assigned


def _number_buffers(buffers: BufferAssignmentProto) -> None:
    """Put buffers into the order in which allocations have them, without ids."""
    order = {item.logical_buffer_id: number for number, item in enumerate(_assigned(buffers))}
    buffers.logical_buffers.sort(key=lambda buffer: order.get(buffer.id, len(order)))
    for buffer in buffers.logical_buffers:
        buffer.ClearField("id")
    for assigned in _assigned(buffers):
        assigned.ClearField("logical_buffer_id")
