"""A minimal, private copy of XLA's HloProto and the code generated from it."""

from xlapipe.read.hlo_proto.xlapipe_hlo_pb2 import (
    BufferAssignmentProto,
    HloModuleProto,
    HloProto,
    OpMetadata,
    ShapeProto,
    StackFrameIndexProto,
)

__all__ = [
    "BufferAssignmentProto",
    "HloModuleProto",
    "HloProto",
    "OpMetadata",
    "ShapeProto",
    "StackFrameIndexProto",
]
