"""Cost of a fusion's instructions per element, in equivalent simple float32 operations."""

from typing import NamedTuple

from xlapipe.plans import Instruction, opcodes

# Cost in simple float32 operations, measured on an H200 with dependent chains of 16.
OPERATIONS = {
    "exponential": 9,
    "exponential-minus-one": 14,
    "log": 27,
    "log-plus-one": 30,
    "tanh": 21,
    "erf": 22,
    "logistic": 16,
    "sine": 25,
    "cosine": 25,
    "tan": 40,
    "power": 55,
    "atan2": 40,
    "cbrt": 20,
    "sqrt": 8,
    "rsqrt": 6,
    "divide": 9,
    "remainder": 14,
    "convert": 3,
    # Each element has a bounds check of its index against an operand.
    "pad": 5,
    "concatenate": 6,
    # Shifts to both sides are one instruction, and so is logic of three operands.
    **dict.fromkeys(("shift-left", "shift-right-logical", "and", "or", "xor", "not"), 0.5),
}
# Cost of a float64 operation, and of a function, relative to float32: an H100 took 2.5 to 3.8 times
# as long.
_DOUBLE, _DOUBLE_FUNCTION, _FUNCTION = 2.0, 3.0, 6
_DOUBLES = ("f64", "c128")
# Instructions without cost per element: LLVM computes their indices beforehand.
FREE = opcodes.RENAMES | opcodes.GIVEN | opcodes.FILLS | opcodes.RESHAPES
FREE |= opcodes.COPIES | (opcodes.REARRANGES - {"concatenate"}) | {"gather"}


def operations_of(instruction: Instruction) -> float:
    """Simple float32 operations that take as long as an element of an instruction's result."""
    weight = OPERATIONS.get(instruction.opcode, 1.0)
    if instruction.shape.element not in _DOUBLES or instruction.opcode in opcodes.JOINS:
        return weight
    return weight * (_DOUBLE_FUNCTION if weight >= _FUNCTION else _DOUBLE)


class ThreadWork(NamedTuple):
    """The work of all threads of a launch together.

    Attributes:
      operations: in simple float32 operations; if one thread of a warp computes, all count.
      longest_operations: most operations of one thread, among those that were followed.
      elements: of the largest instruction, where only elements that are needed count.
      longest_reads: for terms of a sum, of the thread that has most of them.
      lines: L1 cache lines of 128 bytes, counted once for each warp that reads one.
      sector_bytes: bytes of L2 cache sectors that blocks read beyond what is needed once.
    """

    operations: float = 0.0
    longest_operations: float = 0.0
    elements: float = 0.0
    longest_reads: float = 0.0
    lines: float = 0.0
    sector_bytes: float = 0.0
