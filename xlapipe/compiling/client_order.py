"""The order in which XLA's compiler has the module of a program that a device's client compiles.

XLA makes a module of a StableHLO program. For a client of a device, XLA numbers the computations of
this module, and the instructions of each computation, in post-order: each after those that it uses.
For a topology without a device, they have the numbers in which they were made. Passes follow these
numbers, so names, the order of the outputs of fusions and the order of equal instructions in the
schedule can differ, and with them the keys of autotune results.
"""

from collections.abc import Iterator

from xlapipe.read.hlo_proto import (
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    HloProto,
)

# An instruction's id has that of its computation in the upper half.
_HALF = 32
_LOWER = 2**_HALF - 1


def in_client_order(content: bytes) -> bytes:
    """A module with the order and the numbers that it has for a client.

    Args:
      content: a serialised HloProto, as XLA dumps it: instructions are in post-order.

    Returns:
      A serialised HloModuleProto.
    """
    module = HloProto.FromString(content).hlo_module
    computations = list(_in_post_order(module))
    numbers = {it.id: number for number, it in enumerate(computations, start=1)}
    ordered = HloModuleProto()
    ordered.CopyFrom(module)
    del ordered.computations[:]
    ordered.computations.extend(computations)
    ordered.entry_computation_id = numbers[module.entry_computation_id]
    for computation in ordered.computations:
        _renumber(computation, numbers)
    return ordered.SerializeToString()


def _in_post_order(module: HloModuleProto) -> Iterator[HloComputationProto]:
    """Each computation after those that its instructions call, in the order of these calls."""
    by_id = {it.id: it for it in module.computations}
    visited: set[int] = set()
    pending = [(module.entry_computation_id, False)]
    while pending:
        number, callees_done = pending.pop()
        if callees_done:
            yield by_id[number]
        elif number not in visited:
            visited.add(number)
            pending.append((number, True))
            called = [
                callee for it in by_id[number].instructions for callee in it.called_computation_ids
            ]
            pending += [(callee, False) for callee in reversed(called)]


def _renumber(computation: HloComputationProto, numbers: dict[int, int]) -> None:
    """Sets the ids of a computation and of its instructions.

    Args:
      numbers: new ids of computations, by old id.
    """
    upper = numbers[computation.id] << _HALF
    ids = {it.id & _LOWER: upper | row for row, it in enumerate(computation.instructions)}
    for instruction in computation.instructions:
        _renumber_instruction(instruction, ids, numbers)
    computation.id = numbers[computation.id]
    computation.root_id = ids[computation.root_id & _LOWER]


def _renumber_instruction(
    instruction: HloInstructionProto, ids: dict[int, int], numbers: dict[int, int]
) -> None:
    instruction.id = ids[instruction.id & _LOWER]
    for uses in (instruction.operand_ids, instruction.control_predecessor_ids):
        uses[:] = [ids[number & _LOWER] for number in uses]
    called = instruction.called_computation_ids
    called[:] = [numbers[number] for number in called]
