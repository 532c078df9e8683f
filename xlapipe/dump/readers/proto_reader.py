"""The proto reader: an HloProto with a module and its buffer assignment."""

from google.protobuf.message import DecodeError

from xlapipe.dump.readers.allocations_text import in_plan_order, platform_of
from xlapipe.dump.readers.hlo_proto import (
    BufferAllocationProto,
    BufferAssignmentProto,
    HloProto,
    LogicalBufferProto,
)
from xlapipe.dump.readers.proto_module import ModuleReader, ProtoModule
from xlapipe.dump.readers.proto_shapes import Shapes
from xlapipe.dump.readers.source_lines import SourceLines, check_module
from xlapipe.dump.readers.source_text import (
    DUMP_AGAIN,
    GIVE_PROTO,
    refuse,
)
from xlapipe.errors import DumpError
from xlapipe.plans import AllocationKind, BufferAllocation, HloModule, LogicalBuffer, Plan, Shape
from xlapipe.plans.verify import verify

_NamedValue = tuple[str, Shape]
"""Name and shape of a logical buffer."""


def read_proto(data: bytes, *, where: str) -> Plan:
    """The plan in a serialised HloProto.

    XLA's total, live ranges and thunks are not in the proto: `read_path` adds them.
    """
    plan = parse_proto(data, where=where)
    return verify(plan, where=where)


def parse_proto(data: bytes, *, where: str, lines: SourceLines | None = None) -> Plan:
    """Like `read_proto`, without checking the plan's invariants."""
    if lines is not None:
        check_module(lines, data, where=where)
    proto = _parse(data, where)
    if not proto.buffer_assignment.buffer_allocations:
        refuse(
            where,
            "a module with a buffer assignment",
            "none, as in a module before optimisation",
            GIVE_PROTO,
        )
    shapes = Shapes(where)
    module = ModuleReader(proto.hlo_module, shapes, where, lines).read()
    allocations = _allocations(proto.buffer_assignment, module, shapes, where)
    return Plan(
        allocations=allocations,
        module=module.module,
        header_aliases=module.aliases,
        buffer_donors=module.buffer_donors,
        platform=platform_of(allocations),
    )


def read_module(data: bytes, *, where: str) -> HloModule:
    """The module of a serialised HloProto of any stage, also before optimisation."""
    return ModuleReader(_parse(data, where).hlo_module, Shapes(where), where).read().module


def _parse(data: bytes, where: str) -> HloProto:
    if not data:
        raise DumpError(f"{where}: expected an HloProto, found an empty file; fix: {GIVE_PROTO}")
    try:
        proto = HloProto.FromString(data)
    except (DecodeError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise DumpError(
            f"{where}: expected an HloProto, found other bytes ({error}); fix: {GIVE_PROTO}"
        ) from None
    if not proto.hlo_module.computations:
        refuse(where, "an HloProto with a module", "none", GIVE_PROTO)
    return proto


def _allocations(
    proto: BufferAssignmentProto, module: ProtoModule, shapes: Shapes, where: str
) -> tuple[BufferAllocation, ...]:
    buffers: dict[int, _NamedValue] = {}
    for buffer in proto.logical_buffers:
        if buffer.id in buffers:
            refuse(where, "distinct ids of logical buffers", f"{buffer.id} twice", DUMP_AGAIN)
        buffers[buffer.id] = _named_value(buffer, module, shapes, where)
    allocations = []
    for position, allocation in enumerate(proto.buffer_allocations):
        if allocation.index != position:
            refuse(
                where,
                f"allocation {position}, since numbers are consecutive",
                f"allocation {allocation.index}",
                DUMP_AGAIN,
            )
        allocations.append(_allocation(allocation, buffers, where))
    return tuple(allocations)


def _named_value(
    buffer: LogicalBufferProto, module: ProtoModule, shapes: Shapes, where: str
) -> _NamedValue:
    location = buffer.defined_at
    definition = module.defined.get(location.instruction_id)
    if definition is None:
        refuse(
            where,
            f"the instruction that defines logical buffer {buffer.id}",
            f"no instruction {location.instruction_id}",
            DUMP_AGAIN,
        )
    name, wire = definition
    index = tuple(location.shape_index)
    shape = shapes.part(wire, index, name) if index else shapes.shape(wire)
    if shapes.shape(wire).is_tuple:
        name = f"{name}{{{','.join(map(str, index))}}}"
    return name, shape


def _allocation(
    proto: BufferAllocationProto, buffers: dict[int, _NamedValue], where: str
) -> BufferAllocation:
    values = []
    for assigned in proto.assigned:
        buffer = buffers.get(assigned.logical_buffer_id)
        if buffer is None:
            refuse(
                where,
                f"the logical buffers of allocation {proto.index}",
                f"no buffer {assigned.logical_buffer_id}",
                DUMP_AGAIN,
            )
        name, shape = buffer
        values.append(LogicalBuffer(name, assigned.offset, assigned.size, shape))
    is_parameter = proto.is_entry_computation_parameter
    flags = (
        (AllocationKind.PARAMETER, is_parameter),
        (AllocationKind.CONSTANT, proto.is_constant),
        (AllocationKind.THREAD_LOCAL, proto.is_thread_local),
        (AllocationKind.MAYBE_LIVE_OUT, proto.maybe_live_out),
    )
    kinds = tuple(kind for kind, present in flags if present)
    return BufferAllocation(
        index=proto.index,
        size_bytes=proto.size,
        # XLA prints allocations of no other kind as preallocated-temp; the proto has no such field.
        kinds=kinds or (AllocationKind.PREALLOCATED_TEMP,),
        parameter_number=proto.parameter_number if is_parameter else None,
        parameter_shape_index=tuple(proto.parameter_shape_index) if is_parameter else (),
        color=proto.color,
        values=in_plan_order(values),
    )
