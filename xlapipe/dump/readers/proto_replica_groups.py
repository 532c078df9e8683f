"""Read the replica groups of a proto into the form of `xlapipe.dump.readers.replica_groups`."""

from xlapipe.dump.readers.hlo_proto import (
    HloInstructionProto,
    IotaReplicaGroupListProto,
    MeshAxesReplicaGroupListProto,
)
from xlapipe.dump.readers.replica_groups import Axis, Groups, iota_groups, mesh_groups


def groups_of_proto(proto: HloInstructionProto) -> Groups | None:
    """The groups of an instruction, from any of its fields; None if the numbers do not fit."""
    if proto.HasField("iota_collective_device_list"):
        return _iota_groups(proto.iota_collective_device_list)
    if proto.HasField("mesh_axes_replica_group_list"):
        return _mesh_groups(proto.mesh_axes_replica_group_list)
    device_list = proto.collective_device_list
    if device_list.HasField("iota_replica_group_list"):
        return _iota_groups(device_list.iota_replica_group_list)
    groups = device_list.replica_groups or proto.replica_groups
    return tuple(tuple(group.replica_ids) for group in groups)


def _iota_groups(proto: IotaReplicaGroupListProto) -> Groups | None:
    return iota_groups(
        proto.num_replica_groups,
        proto.num_devices_per_group,
        tuple(proto.iota_reshape_dims),
        tuple(proto.iota_transpose_perm),
    )


def _mesh_groups(proto: MeshAxesReplicaGroupListProto) -> Groups | None:
    refs: list[Axis] = [
        (
            axis.mesh_axis_index,
            (axis.sub_axis_info.pre_size, axis.sub_axis_info.size)
            if axis.HasField("sub_axis_info")
            else None,
        )
        for axis in proto.axes
    ]
    sizes = tuple(axis.size for axis in proto.mesh.axes)
    return mesh_groups(sizes, tuple(refs), tuple(proto.mesh.device_ids))
