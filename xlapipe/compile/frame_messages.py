"""Messages of XLA's with only the fields that lead to stack frames; all else stays as bytes.

Python writes fields that a schema lacks after those that it has. These have every field up to the
last one that they need, so a module that is read and written again keeps the order of its fields,
and its bytes.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from xlapipe.dump.readers.hlo_proto import (
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    HloProto,
    OpMetadata,
)

# By message: its fields, by name, and the message that each has, or None for bytes. Optional bytes
# are written where they were read, empty ones too. The last field of OpMetadata is a number.
_FIELDS: dict[Any, dict[str, Any]] = {
    HloProto: {"hlo_module": HloModuleProto},
    HloModuleProto: {
        "name": None,
        "entry_computation_name": None,
        "computations": HloComputationProto,
        "stack_frame_index": None,
    },
    HloComputationProto: {"name": None, "instructions": HloInstructionProto},
    HloInstructionProto: {"name": None, "opcode": None, "shape": None, "metadata": OpMetadata},
    OpMetadata: {"stack_frame_id": None},
}


def module_without_frames(proto: bytes) -> bytes:
    """A serialised HloProto without stack frames; all else keeps its bytes.

    Args:
      proto: as C++ writes it, with fields in the order of their numbers.

    Raises:
      google.protobuf.message.DecodeError: the bytes are not an HloProto.
    """
    message = _HLO_PROTO.FromString(proto)
    message.hlo_module.ClearField("stack_frame_index")
    for computation in message.hlo_module.computations:
        for instruction in computation.instructions:
            if instruction.HasField("metadata"):
                instruction.metadata.ClearField("stack_frame_id")
    serialised: bytes = message.SerializeToString()
    return serialised


def _hlo_proto() -> Any:
    """The class of the outermost message."""
    package = "xlapipe.frames"
    file = FileDescriptorProto(name="xlapipe_frames.proto", package=package, syntax="proto2")
    for message, fields in _FIELDS.items():
        declared = file.message_type.add(name=message.DESCRIPTOR.name)
        for name, inner in fields.items():
            known = message.DESCRIPTOR.fields_by_name[name]
            field = declared.field.add(
                name=name,
                number=known.number,
                label=(
                    FieldDescriptorProto.LABEL_REPEATED
                    if name in ("computations", "instructions")
                    else FieldDescriptorProto.LABEL_OPTIONAL
                ),
                type=FieldDescriptorProto.TYPE_BYTES,
            )
            if name == "stack_frame_id":
                field.type = FieldDescriptorProto.TYPE_INT32
            elif inner is not None:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{package}.{inner.DESCRIPTOR.name}"
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{package}.HloProto"))


_HLO_PROTO = _hlo_proto()
