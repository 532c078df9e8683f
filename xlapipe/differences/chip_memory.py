"""Changes in the memories of a TPU's chip, which the account of device memory leaves out."""

from collections.abc import Iterator

from xlapipe.differences.changes import ChipMemoryChange, InstructionChange, MovesChange
from xlapipe.plans.copies import find_moves
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.plan import Plan

_SPACES = (MemorySpace.VMEM, MemorySpace.SMEM)


def chip_memory_changes(a: Plan, b: Plan) -> Iterator[ChipMemoryChange | MovesChange]:
    """Totals by memory, and moves by direction, where they differ; nothing for two GPUs."""
    for space in _SPACES:
        sizes = [plan.spaces[space].total_bytes if space in plan.spaces else 0 for plan in (a, b)]
        if sizes[0] != sizes[1]:
            yield ChipMemoryChange(str(space), *sizes)
    moves_a, moves_b = _moves(a), _moves(b)
    for source, target in sorted(moves_a.keys() | moves_b.keys()):
        one, two = (moves.get((source, target), []) for moves in (moves_a, moves_b))
        if sorted(one) != sorted(two):
            yield MovesChange(source, target, len(one), len(two), sum(one), sum(two))


def without_chip_memory(
    changes: tuple[InstructionChange, ...], a: Plan, b: Plan
) -> tuple[InstructionChange, ...]:
    """The changes without moves and values on the chip, if only one of the plans is for a TPU.

    `chip_memory_changes` states them together: a GPU's plan has nothing to compare them with.
    """
    if a.platform == b.platform:
        return changes
    moves = _instructions_of_moves(a) | _instructions_of_moves(b)
    return tuple(
        change
        for change in changes
        if None not in (change.a, change.b)
        or (moves.isdisjoint({change.a, change.b}) and (change.a_bytes or change.b_bytes))
    )


def _instructions_of_moves(plan: Plan) -> set[str]:
    """Names of the instructions that move a value, and of those that start it asynchronously."""
    moves = {move.copy.instruction for move in find_moves(plan)}
    if plan.module is None:
        return moves
    computations = {
        computation.name
        for computation, instruction in plan.module.instructions()
        if instruction.name in moves
    }
    return moves | {
        instruction.name
        for _, instruction in plan.module.instructions()
        if instruction.opcode == "async-start"
        and not computations.isdisjoint(instruction.called_computations)
    }


def _moves(plan: Plan) -> dict[tuple[str, str], list[int]]:
    """Bytes of each move, by direction."""
    moves: dict[tuple[str, str], list[int]] = {}
    for move in find_moves(plan):
        direction = (str(move.source_space), str(move.target_space))
        moves.setdefault(direction, []).append(move.copy.copied_bytes)
    return moves
