"""Copies of memory that was never written: work for nothing, and garbage in the result.

XLA has such memory from `AllocateBuffer`, which is what `jax.lax.empty` becomes. To write into it
in place is what it is for; to copy it first is not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plan.copies import find_copies, only_moves
from xlapipe.plan.dataflow import Dataflow
from xlapipe.plan.hlo import Instruction, SourceLine
from xlapipe.plan.plan import Plan

_ALLOCATES = "AllocateBuffer"
_NAMES = frozenset({"bitcast", "get-tuple-element", "opt-barrier"})
# These hand every element out as they took it; a loop's body may have written to it.
_SPREADS = frozenset({"broadcast", "convert", "pad"})


@dataclass(frozen=True, slots=True)
class UndefinedCopy:
    """An instruction that writes undefined data elsewhere.

    Attributes:
      buffer: the instruction that allocates what is read.
      size_bytes: of the value written.
    """

    instruction: str
    buffer: str
    size_bytes: int
    op_name: str | None
    source: SourceLine | None


def undefined_copies(plan: Plan) -> tuple[UndefinedCopy, ...] | None:
    """Every copy of undefined data, in the schedule's order; None without a whole HLO module."""
    if plan.module is None or not plan.module.complete:
        return None
    return tuple(_find(plan, Dataflow(plan.module)))


def _find(plan: Plan, dataflow: Dataflow) -> Iterator[UndefinedCopy]:
    copied = {copy.instruction: copy.copied_bytes for copy in find_copies(plan)}
    sizes: dict[str, int] = {}
    for allocation in plan.allocations:
        for value in allocation.values:
            name = value.instruction
            sizes[name] = max(sizes.get(name, 0), value.size_bytes)
    for name, instruction in plan.instructions.items():
        spreads = _spreads(dataflow, instruction)
        if name not in copied and not spreads:
            continue
        for buffer in _buffers_read(plan, instruction):
            yield UndefinedCopy(
                name,
                buffer,
                copied.get(name, sizes.get(name, 0)),
                instruction.op_name,
                plan.nearest_source(name) or plan.nearest_source(buffer),
            )


def _spreads(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether it writes an operand's data elsewhere without computing from several."""
    if instruction.opcode in _SPREADS:
        return True
    if instruction.opcode != "fusion" or only_moves(dataflow, instruction):
        return False  # a move in place is none; one elsewhere is among the copies
    opcodes = {site.instruction.opcode for site in dataflow.body(instruction)}
    return bool(opcodes & _SPREADS) and opcodes <= _SPREADS | _NAMES | {"parameter", "copy"}


def _buffers_read(plan: Plan, instruction: Instruction) -> Iterator[str]:
    """Names of the allocating instructions whose memory it reads unwritten."""
    for position, operand in enumerate(instruction.operands):
        index = instruction.operand_indices[position] if instruction.operand_indices else ()
        buffer = _origin(plan, operand, index)
        if buffer is not None:
            yield buffer


def _origin(plan: Plan, name: str, index: tuple[int, ...]) -> str | None:
    """The AllocateBuffer that an element of `name` is, under other names; None if it is another."""
    for _ in range(len(plan.instructions)):
        found = plan.instructions.get(name)
        if found is None:
            return None
        if found.custom_call_target == _ALLOCATES:
            return name
        if found.opcode == "tuple" and index and index[0] < len(found.operands):
            position, index = index[0], index[1:]
        elif found.opcode in _NAMES and found.operands:
            position = 0
        else:
            return None
        read = found.operand_indices[position] if found.operand_indices else ()
        name, index = found.operands[position], (*read, *index)
    return None
