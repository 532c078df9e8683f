"""Copies between device memory and pinned host memory, as offloading causes them."""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plans.dataflow import Dataflow, Value, dataflow_of
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.memory_spaces import HOST_COLOR, MemorySpace
from xlapipe.plans.opcodes import WRAPS
from xlapipe.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class HostTransfer:
    """One copy between device memory and pinned host memory.

    Attributes:
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


# The operand whose elements an instruction moves, by its opcode.
_MOVED = {"copy": 0, "copy-start": 0, "dynamic-slice": 0, "dynamic-update-slice": 1, "slice": 0}


def find_host_transfers(plan: Plan) -> tuple[HostTransfer, ...]:
    """Every copy to or from pinned host memory, in the order of the schedule."""
    if plan.module is None or not plan.allocations_in(MemorySpace.HOST):
        return ()
    flow = dataflow_of(plan.module)
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
        for transfer in _transfers(plan, flow, Value(computation, instruction))
    )


def _transfers(plan: Plan, flow: Dataflow, value: Value) -> Iterator[HostTransfer]:
    """What an instruction moves itself, as a fusion or asynchronously."""
    instruction = value.instruction
    for inner in flow.body(instruction) if instruction.opcode in WRAPS else (value,):
        position = _MOVED.get(inner.instruction.opcode)
        operand = flow.operand(inner, position) if position is not None else None
        if operand is None:
            continue
        # The result of a copy-start is (destination, source, context).
        shapes = operand.shape, inner.shape.at((0,))
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
