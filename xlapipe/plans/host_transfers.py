"""Copies between device memory and pinned host memory, as offloading causes them."""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plans.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plans.memory_spaces import HOST_COLOR, MemorySpace
from xlapipe.plans.opcodes import WRAPS
from xlapipe.plans.plan import Plan
from xlapipe.plans.shapes import Shape


@dataclass(frozen=True, slots=True)
class HostTransfer:
    """One copy between device memory and pinned host memory.

    Attributes:
      instruction: the instruction that starts it.
      direction: `to_host` or `to_device`.
      moved_bytes: bytes per execution.
      asynchronous: whether other work may run between its start and its done.
    """

    instruction: str
    direction: str
    moved_bytes: int
    asynchronous: bool
    op_name: str | None
    source: SourceLine | None


def find_host_transfers(plan: Plan) -> tuple[HostTransfer, ...]:
    """Every copy to or from pinned host memory, in the order of the schedule."""
    if plan.module is None or not plan.allocations_in(MemorySpace.HOST):
        return ()
    wrapped = {
        name
        for _, instruction in plan.module.scheduled()
        if instruction.opcode == "async-start"
        for name in instruction.called_computations
    }
    return tuple(
        transfer
        for computation, instruction in plan.module.scheduled()
        if computation.name not in wrapped
        for transfer in _transfers(plan, plan.module, computation, instruction)
    )


def _transfers(
    plan: Plan, module: HloModule, computation: Computation, instruction: Instruction
) -> Iterator[HostTransfer]:
    for scope, inner in _moves_in(module, computation, instruction):
        shapes = _shapes_moved(scope, inner)
        if shapes is None:
            continue
        from_host, to_host = (shape.memory_space == HOST_COLOR for shape in shapes)
        if from_host != to_host:
            yield HostTransfer(
                instruction.name,
                "to_host" if to_host else "to_device",
                # A slice moves only its own bytes, not those of the whole buffer.
                min(shape.size_bytes or 0 for shape in shapes),
                instruction.opcode.endswith("-start"),
                instruction.op_name,
                plan.nearest_source(instruction.name),
            )


def _moves_in(
    module: HloModule, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """The instruction itself, or the instructions that it runs as a fusion or asynchronously."""
    if instruction.opcode not in WRAPS:
        yield computation, instruction
        return
    for body in module.called(instruction.called_computations, WRAPS):
        yield from ((body, inner) for inner in body.instructions if inner.opcode not in WRAPS)


def _shapes_moved(computation: Computation, instruction: Instruction) -> tuple[Shape, Shape] | None:
    """The shapes that an instruction reads and writes; None if it does not move data."""
    if instruction.opcode == "copy-start":
        # Its shape is (destination, source, context).
        elements = instruction.shape.parts
        return (elements[1], elements[0]) if len(elements) >= 2 else None
    if instruction.opcode in ("copy", "dynamic-slice", "slice"):
        operand = computation.by_name.get(instruction.operands[0])
        return (operand.shape, instruction.shape) if operand is not None else None
    if instruction.opcode == "dynamic-update-slice":
        update = computation.by_name.get(instruction.operands[1])
        return (update.shape, instruction.shape) if update is not None else None
    return None
