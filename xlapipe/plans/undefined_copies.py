"""Find copies of memory that was never written: wasted work, and undefined data in the result.

Such memory comes from XLA's `AllocateBuffer`, to which `jax.lax.empty` compiles. It is meant to be
written in place; copying it first is a mistake.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plans import opcodes
from xlapipe.plans.copies import find_copies, only_moves
from xlapipe.plans.dataflow import Dataflow, Site, Value, dataflow_of
from xlapipe.plans.hlo import Instruction, SourceLine
from xlapipe.plans.plan import Plan

# Opcodes that write the elements of their operand unchanged, or converted, to new memory.
_REWRITES = opcodes.EXTENDS | {"convert"}


@dataclass(frozen=True, slots=True)
class UndefinedCopy:
    """An instruction that writes undefined data to other memory.

    Attributes:
      buffer: the instruction that allocates the memory that is read.
      size_bytes: size of the value written.
    """

    instruction: str
    buffer: str
    size_bytes: int
    op_name: str | None
    source: SourceLine | None


def undefined_copies(plan: Plan) -> tuple[UndefinedCopy, ...] | None:
    """Every copy of undefined data, in schedule order; None without a complete HLO module."""
    if plan.module is None or not plan.module.complete:
        return None
    return tuple(_find(plan, dataflow_of(plan.module)))


def _find(plan: Plan, dataflow: Dataflow) -> Iterator[UndefinedCopy]:
    copied_bytes = {copy.instruction: copy.copied_bytes for copy in find_copies(plan)}
    sizes: dict[str, int] = {}
    for allocation in plan.allocations:
        for value in allocation.values:
            name = value.instruction
            sizes[name] = max(sizes.get(name, 0), value.size_bytes)
    for computation, instruction in dataflow.module.scheduled():
        name = instruction.name
        if name not in copied_bytes and not _rewrites(dataflow, instruction):
            continue
        for buffer in _buffers_read(dataflow, Site(computation, instruction)):
            yield UndefinedCopy(
                name,
                buffer,
                copied_bytes.get(name, sizes.get(name, 0)),
                instruction.op_name,
                plan.nearest_source(name) or plan.nearest_source(buffer),
            )


def _rewrites(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether the instruction only writes the data of an operand to other memory."""
    if instruction.opcode in _REWRITES:
        return True
    if instruction.opcode != "fusion" or only_moves(dataflow, instruction):
        return False  # a move to other memory is in `find_copies`; one in place is not a copy
    inside = {site.instruction.opcode for site in dataflow.body(instruction)}
    allowed = _REWRITES | opcodes.RENAMES | {"copy", "parameter"}
    return bool(inside & _REWRITES) and inside <= allowed


def _buffers_read(dataflow: Dataflow, site: Site) -> Iterator[str]:
    """Names of the AllocateBuffer calls whose unwritten memory the instruction reads."""
    for position in range(len(site.instruction.operands)):
        operand = dataflow.operand(Value(site.computation, site.instruction), position)
        if operand is not None:
            made_by = dataflow.definition(operand).instruction
            if made_by.custom_call_target == opcodes.ALLOCATE_BUFFER:
                yield made_by.name
