"""Convert an HloModuleProto to an HloModule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from xlapipe.dump.readers.contraction import MAY_CONTRACT, contraction_of_proto
from xlapipe.dump.readers.hlo_header import Donor, sorted_aliases
from xlapipe.dump.readers.hlo_proto import (
    FrontendAttributes,
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    IotaReplicaGroupListProto,
    MeshAxesReplicaGroupListProto,
    OpMetadata,
)
from xlapipe.dump.readers.hlo_spellings import in_call_order, without_tuple_elements
from xlapipe.dump.readers.instruction_attributes import (
    canonical_config,
    integer_of_proto,
    real_of_proto,
    transfer_of,
)
from xlapipe.dump.readers.proto_shapes import Shapes
from xlapipe.dump.readers.replica_groups import Axis, Groups, iota_groups, mesh_groups
from xlapipe.dump.readers.source_lines import SourceLines, source_line
from xlapipe.dump.readers.source_text import DUMP_AGAIN
from xlapipe.errors import DumpError
from xlapipe.plans import Computation, HloModule, InputOutputAlias, Instruction, SourceLine
from xlapipe.plans.call_chains import CallChains, Frame
from xlapipe.plans.hlo import CollectiveGroups
from xlapipe.plans.opcodes import POINT_TO_POINT, WITH_GROUPS

_MUST_ALIAS = 2


@dataclass(frozen=True)
class ProtoModule:
    """A module, and an index of its instructions for reading the buffer assignment.

    Attributes:
      defined: (name, wire form of the shape) of each instruction, by id.
    """

    module: HloModule
    aliases: tuple[InputOutputAlias, ...]
    buffer_donors: tuple[Donor, ...]
    defined: Mapping[int, tuple[str, bytes]]


class ModuleReader:
    """Reads one module, with caches for data that many instructions share.

    Args:
      lines: lines of the module's instructions; None if the module itself has them.
    """

    def __init__(
        self, proto: HloModuleProto, shapes: Shapes, where: str, lines: SourceLines | None = None
    ) -> None:
        self._proto = proto
        self._shapes = shapes
        self._where = where
        self._configs: dict[bytes, str] = {b"": ""}
        self._computations = {
            computation.id: computation.name for computation in proto.computations
        }
        self._known_frames = None if lines is None else lines.frame_of
        self._chains = CallChains(self._read_frames()) if lines is None else lines.chains
        self._frame_of: dict[str, int] = {}

    def read(self) -> ProtoModule:
        proto = self._proto
        if len(self._computations) != len(proto.computations):
            self._fail("distinct ids of computations", "one id twice")
        order = proto.schedule.sequences
        defined: dict[int, tuple[str, bytes]] = {}
        computations: dict[str, Computation] = {}
        count = 0
        for computation in proto.computations:
            # Convert to a list once: protobuf makes a new object for each access to an element.
            instructions = list(computation.instructions)
            count += len(instructions)
            names: dict[int, str] = {}
            for instruction in instructions:
                identifier, name = instruction.id, instruction.name
                names[identifier] = name
                defined[identifier] = (name, instruction.shape)
            scheduled = order[computation.id].instruction_ids if computation.id in order else None
            if computation.name in computations:
                self._fail("distinct names of computations", f"{computation.name!r} twice")
            computations[computation.name] = self._computation(
                computation, instructions, names, scheduled
            )
        if count != len(defined):
            self._fail("distinct ids of instructions", "one id twice")
        entry = self._computations.get(proto.entry_computation_id, proto.entry_computation_name)
        if entry not in computations:
            self._fail("the entry computation", f"no computation {entry!r}")
        return ProtoModule(
            module=HloModule(
                proto.name,
                in_call_order(computations, entry),
                entry,
                chains=CallChains(self._chains.frames, self._frame_of),
            ),
            aliases=self._aliases(),
            buffer_donors=tuple(
                sorted(
                    (donor.parameter_number, tuple(donor.parameter_shape_index))
                    for donor in proto.buffer_donor.entries
                )
            ),
            defined=defined,
        )

    def _fail(self, expected: str, found: str) -> NoReturn:
        raise DumpError(f"{self._where}: expected {expected}, found {found}; fix: {DUMP_AGAIN}")

    def _computation(
        self,
        proto: HloComputationProto,
        protos: list[HloInstructionProto],
        names: Mapping[int, str],
        scheduled: Iterable[int] | None,
    ) -> Computation:
        computation = proto.name
        by_id = {
            identifier: self._instruction(instruction, names, computation)
            for identifier, instruction in zip(names, protos, strict=False)
        }
        root = names.get(proto.root_id)
        if root is None or len(set(names.values())) != len(protos):
            self._fail(
                f"a root and distinct names in computation {proto.name!r}",
                "no root, or a name twice",
            )
        instructions = tuple(by_id.values())
        if scheduled is not None:
            sequence = list(scheduled)
            if len(sequence) != len(by_id) or set(sequence) != by_id.keys():
                self._fail(
                    f"a schedule of the {len(by_id)} instructions of {proto.name!r}",
                    f"a schedule of {len(sequence)} other instructions",
                )
            instructions = tuple(by_id[identifier] for identifier in sequence)
        return Computation(proto.name, without_tuple_elements(instructions, root), root)

    def _instruction(
        self, proto: HloInstructionProto, names: Mapping[int, str], computation: str
    ) -> Instruction:
        opcode, config = proto.opcode, proto.backend_config
        canonical = self._configs.get(config) if config else ""
        if canonical is None:
            canonical = self._configs[config] = canonical_config(config.decode("utf-8", "replace"))
        try:
            operands = tuple([names[operand] for operand in proto.operand_ids])
            called = tuple([self._computations[c] for c in proto.called_computation_ids])
        except KeyError as error:
            raise DumpError(
                f"{self._where}: expected operands in computation {computation!r} and called "
                f"computations for instruction {proto.name!r}, found unknown id {error}; "
                f"fix: {DUMP_AGAIN}"
            ) from None
        metadata, shape = proto.metadata, self._shapes.shape(proto.shape)
        return Instruction(
            proto.name,
            opcode,
            shape,
            operands,
            proto.parameter_number if opcode == "parameter" else None,
            called,
            proto.fusion_kind if opcode == "fusion" else None,
            proto.custom_call_target if opcode == "custom-call" else None,
            metadata.op_name or None,
            self._source(proto.name, metadata),
            canonical,
            self._collective(proto, opcode),
            ((proto.tuple_index,),) if opcode == "get-tuple-element" else (),
            contraction_of_proto(proto) if opcode in MAY_CONTRACT else None,
            integer_of_proto(shape, proto.literal) if opcode == "constant" else None,
            real_of_proto(shape, proto.literal) if opcode == "constant" else None,
            proto.comparison_direction or None if opcode == "compare" else None,
            unique_indices=opcode == "scatter" and proto.unique_indices,
        )

    def _collective(self, proto: HloInstructionProto, opcode: str) -> CollectiveGroups | None:
        if opcode in POINT_TO_POINT:
            attributes = FrontendAttributes.FromString(proto.frontend_attributes)
            return transfer_of(attributes.map)
        if opcode not in WITH_GROUPS:
            return None
        groups = groups_of_proto(proto)
        if groups is None:
            self._fail(f"replica groups of {proto.name!r}", "numbers that do not fit together")
        return CollectiveGroups(
            groups,
            tuple((pair.source, pair.target) for pair in proto.source_target_pairs),
            proto.channel_id or None,
        )

    def _source(self, name: str, metadata: OpMetadata) -> SourceLine | None:
        if self._known_frames is None:
            frame = metadata.stack_frame_id
        else:
            frame = self._known_frames.get(name, 0)
        source = None
        if frame:
            self._frame_of[name] = frame
            source = source_line(self._chains, frame)
        if source is None and metadata.source_file:
            return SourceLine(metadata.source_file, metadata.source_line)
        return source

    def _aliases(self) -> tuple[InputOutputAlias, ...]:
        return sorted_aliases(
            [
                InputOutputAlias(
                    entry.parameter_number,
                    tuple(entry.output_shape_index),
                    tuple(entry.parameter_shape_index),
                    entry.kind == _MUST_ALIAS,
                )
                for entry in self._proto.input_output_alias.entries
            ]
        )

    def _read_frames(self) -> list[Frame]:
        index = self._proto.stack_frame_index
        names, functions = list(index.file_names), list(index.function_names)
        locations = []
        for location in index.file_locations:
            if not 0 <= location.file_name_id <= len(names):
                self._fail(f"file name ids up to {len(names)}", f"id {location.file_name_id}")
            name = names[location.file_name_id - 1] if location.file_name_id else ""
            if not 0 <= location.function_name_id <= len(functions):
                self._fail(
                    f"function name ids up to {len(functions)}", f"id {location.function_name_id}"
                )
            function = functions[location.function_name_id - 1] if location.function_name_id else ""
            locations.append((name, location.line, function))
        frames = []
        for frame in index.stack_frames:
            at, parent = frame.file_location_id, frame.parent_frame_id
            if not (0 <= at <= len(locations) and 0 <= parent <= len(index.stack_frames)):
                self._fail("known ids in stack frames", f"location {at}, parent {parent}")
            name, line, function = locations[at - 1] if at else ("", 0, "")
            frames.append(Frame(name, line, parent, function))
        return frames


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
