"""The proto reader: an HloProto with a module and its buffer assignment."""

from google.protobuf.message import DecodeError

from xlapipe.errors import DumpError
from xlapipe.plan import AllocationKind, BufferAllocation, HloModule, LogicalBuffer, Plan
from xlapipe.plan.verify import verify
from xlapipe.read.allocations_text import in_order
from xlapipe.read.hlo_proto import (
    BufferAllocationProto,
    BufferAssignmentProto,
    HloProto,
    LogicalBufferProto,
)
from xlapipe.read.proto_module import ModuleReader, ProtoModule
from xlapipe.read.proto_shapes import Shapes

_GIVE = "give the *_gpu_after_optimizations.hlo.pb that --xla_dump_hlo_as_proto writes"
_AGAIN = "the file is damaged: dump the module again"

Defined = tuple[str, str, int]


def read_proto(data: bytes, *, where: str) -> Plan:
    """The plan in a serialised HloProto.

    XLA's total, live ranges and thunks are not in the proto: `read_path` adds them.

    Args:
      where: the file, for messages.

    Raises:
      DumpError: for bytes that are no HloProto, one without a buffer assignment, or one whose
        ids lead nowhere.
      PlanMismatchError: for a plan that breaks an invariant.
    """
    plan = parse_proto(data, where=where)
    verify(plan, where=where)
    return plan


def parse_proto(data: bytes, *, where: str) -> Plan:
    """As `read_proto`, without the check of the whole."""
    proto = _parse(data, where)
    if not proto.buffer_assignment.buffer_allocations:
        raise DumpError(
            f"{where}: expected a module with a buffer assignment, found none, as before "
            f"optimisation; {_GIVE}"
        )
    shapes = Shapes(where)
    module = ModuleReader(proto.hlo_module, shapes, where).read()
    return Plan(
        allocations=_allocations(proto.buffer_assignment, module, shapes, where),
        module=module.module,
        header_aliases=module.aliases,
        buffer_donors=module.buffer_donors,
    )


def read_module(data: bytes, *, where: str) -> HloModule:
    """The module of a serialised HloProto of any stage, before optimisation too.

    Raises:
      DumpError: for bytes that are no HloProto, or whose ids lead nowhere.
    """
    return ModuleReader(_parse(data, where).hlo_module, Shapes(where), where).read().module


def _parse(data: bytes, where: str) -> HloProto:
    if not data:
        raise DumpError(f"{where}: expected an HloProto, found an empty file; {_GIVE}")
    try:
        proto = HloProto.FromString(data)
    except (DecodeError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise DumpError(
            f"{where}: expected an HloProto, found bytes that are none ({error}); {_GIVE}"
        ) from None
    if not proto.hlo_module.computations:
        raise DumpError(f"{where}: expected an HloProto with a module, found none; {_GIVE}")
    return proto


def _allocations(
    proto: BufferAssignmentProto, module: ProtoModule, shapes: Shapes, where: str
) -> tuple[BufferAllocation, ...]:
    buffers: dict[int, Defined] = {}
    for buffer in proto.logical_buffers:
        if buffer.id in buffers:
            raise DumpError(f"{where}: expected logical buffer {buffer.id} once; {_AGAIN}")
        buffers[buffer.id] = _defined(buffer, module, shapes, where)
    allocations = []
    for position, allocation in enumerate(proto.buffer_allocations):
        if allocation.index != position:
            raise DumpError(
                f"{where}: expected allocation {position}, as they are numbered in order, found "
                f"allocation {allocation.index}; {_AGAIN}"
            )
        allocations.append(_allocation(allocation, buffers, where))
    return tuple(allocations)


def _defined(
    buffer: LogicalBufferProto, module: ProtoModule, shapes: Shapes, where: str
) -> Defined:
    """(name, shape, size) of a logical buffer."""
    location = buffer.defined_at
    found = (
        module.defined_by_name.get(location.instruction_name)
        if location.instruction_name and not location.instruction_id
        else module.defined.get(location.instruction_id)
    )
    if found is None:
        raise DumpError(
            f"{where}: expected the instruction that defines logical buffer {buffer.id}, found "
            f"no instruction {location.instruction_name or location.instruction_id}; {_AGAIN}"
        )
    name, wire = found
    index = tuple(location.shape_index)
    shape = shapes.part(wire, index, name) if index else shapes.text(wire)
    if shapes.is_tuple(wire):
        name = f"{name}{{{','.join(map(str, index))}}}"
    return name, shape, buffer.size


def _allocation(
    proto: BufferAllocationProto, buffers: dict[int, Defined], where: str
) -> BufferAllocation:
    values = []
    for assigned in proto.assigned:
        found = buffers.get(assigned.logical_buffer_id)
        if found is None:
            raise DumpError(
                f"{where}: expected the logical buffers of allocation {proto.index}, found no "
                f"buffer {assigned.logical_buffer_id}; {_AGAIN}"
            )
        name, shape, _ = found
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
        # XLA prints what is no other kind as preallocated-temp; the proto has no field for it.
        kinds=kinds or (AllocationKind.PREALLOCATED_TEMP,),
        parameter_number=proto.parameter_number if is_parameter else None,
        parameter_shape_index=tuple(proto.parameter_shape_index) if is_parameter else (),
        color=proto.color,
        values=in_order(values),
    )
