"""Parts of plans for tests, with shapes written as XLA prints them."""

from typing import Any

from xlapipe.plans import Instruction, LogicalBuffer
from xlapipe.plans.shapes import Shape, shape_of


def instruction(
    name: str, opcode: str, shape: str | Shape, *args: Any, **fields: Any
) -> Instruction:
    """An `Instruction`; `shape` is text."""
    return Instruction(name, opcode, shape_of(str(shape)), *args, **fields)


def logical_buffer(
    name: str, offset_bytes: int, size_bytes: int, shape: str | Shape
) -> LogicalBuffer:
    """A `LogicalBuffer`; `shape` is text."""
    return LogicalBuffer(name, offset_bytes, size_bytes, shape_of(str(shape)))
