"""Minimal private copies of XLA's HloProto and the profiler's XSpace, and their generated code."""

import warnings

with warnings.catch_warnings():
    # The code is generated for protobuf 5.29 so that any later runtime loads it; 6.30 to 6.32
    # warn of the older major version.
    warnings.filterwarnings("ignore", "Protobuf gencode version", UserWarning)
    from xlapipe.dump.readers.hlo_proto.xlapipe_hlo_pb2 import (
        BufferAllocationProto,
        BufferAssignmentProto,
        FrontendAttributes,
        HloComputationProto,
        HloInstructionProto,
        HloModuleProto,
        HloProto,
        HloScheduleProto,
        IotaReplicaGroupListProto,
        LiteralProto,
        LogicalBufferProto,
        MeshAxesReplicaGroupListProto,
        OpMetadata,
        ShapeProto,
        StackFrameIndexProto,
    )
    from xlapipe.dump.readers.hlo_proto.xlapipe_xplane_pb2 import XEvent, XPlane, XSpace

__all__ = [
    "BufferAllocationProto",
    "BufferAssignmentProto",
    "FrontendAttributes",
    "HloComputationProto",
    "HloInstructionProto",
    "HloModuleProto",
    "HloProto",
    "HloScheduleProto",
    "IotaReplicaGroupListProto",
    "LiteralProto",
    "LogicalBufferProto",
    "MeshAxesReplicaGroupListProto",
    "OpMetadata",
    "ShapeProto",
    "StackFrameIndexProto",
    "XEvent",
    "XPlane",
    "XSpace",
]
