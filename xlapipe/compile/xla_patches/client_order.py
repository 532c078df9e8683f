"""The numbers that the instructions of a module have where XLA compiles for a client of a device.

XLA makes a module of a StableHLO program. For a client of a device, it numbers the instructions of
each computation in post-order: each after those that it uses. For a topology without a device, they
keep the numbers in which they were made. Passes follow these numbers, so names, the order of the
outputs of fusions and the order of equal instructions in the schedule can differ, and with them the
keys of autotune results.
"""

from xlapipe.compile.wire_format import field
from xlapipe.dump.readers.hlo_proto import HloComputationProto, HloModuleProto, HloProto

# An instruction's id has that of its computation in the upper half.
_COMPUTATION = -(2**32)


def in_client_order(content: bytes) -> bytes:
    """A module whose instructions are numbered as for a client.

    Args:
      content: a serialised HloProto, as XLA dumps it: instructions are in post-order.

    Returns:
      A serialised HloModuleProto.
    """
    module = HloProto.FromString(content).hlo_module
    for computation in module.computations:
        _renumber(computation)
    return module.SerializeToString()


def layout_options(content: bytes) -> bytes:
    """The layouts of a module's arguments and results, as fields of XLA's CompileOptionsProto.

    Without them, XLA gives an HLO module default layouts, without the packing of small elements.

    Args:
      content: a serialised HloModuleProto.
    """
    program = HloModuleProto.FromString(content).host_program_shape
    arguments = (field(1, shape.SerializeToString()) for shape in program.parameters)
    return b"".join(arguments) + field(3, field(2, program.result.SerializeToString()))


def _renumber(computation: HloComputationProto) -> None:
    instructions = computation.instructions
    ids = {it.id: it.id & _COMPUTATION | row for row, it in enumerate(instructions)}
    for instruction in instructions:
        instruction.id = ids[instruction.id]
        for uses in (instruction.operand_ids, instruction.control_predecessor_ids):
            uses[:] = [ids[number] for number in uses]
    computation.root_id = ids[computation.root_id]
