"""Arrays of instructions, and the logarithms and shares that form coordinates."""

from functools import lru_cache
from math import log2
from typing import NamedTuple

from xlapipe.plans import Computation, Instruction, Shape, opcodes
from xlapipe.plans.dataflow import operand_index


class ArrayInMemory(NamedTuple):
    """Type, dimensions from major to minor in memory, and elements of an array."""

    element: str
    dims: tuple[int, ...]
    elements: int


@lru_cache(maxsize=1 << 14)
def first_array(shape: Shape) -> ArrayInMemory:
    """The first array of a shape; one of no elements if it has none."""
    if not shape.arrays:
        return ArrayInMemory("", (), 0)
    first = shape.arrays[0]
    dims = tuple(first.dims[number] for number in reversed(minor_to_major(first)))
    return ArrayInMemory(first.element, dims, first.elements)


def minor_to_major(shape: Shape) -> tuple[int, ...]:
    """Dimensions of an array from minor to major in memory."""
    numbers = range(len(shape.dims))
    if shape.order is None or sorted(shape.order) != list(numbers):
        return tuple(reversed(numbers))
    return shape.order


def operand_shapes(instruction: Instruction, scope: Computation) -> list[Shape]:
    """Shapes of what an instruction reads, by position; for a tuple's element, its own shape.

    Without operands of other computations, which a damaged file may have.
    """
    return [
        scope.by_name[name].shape.at(operand_index(instruction, position))
        for position, name in enumerate(instruction.operands)
        if name in scope.by_name
    ]


def updated_in_place(body: Computation) -> frozenset[str]:
    """The in-place updates of a fusion: XLA updates in place if each of its results is an update.

    Source: `IsDynamicUpdateSliceFusion` of xla/backends/gpu/codegen/fusions.cc.
    """
    root = body.by_name[body.root]
    names = root.operands if root.opcode == "tuple" else (root.name,)
    updates = []
    for result in names:
        instruction = body.by_name[result]
        while instruction.opcode in opcodes.RESHAPES:
            instruction = body.by_name[instruction.operands[0]]
        if instruction.opcode != "dynamic-update-slice":
            return frozenset()
        updates.append(instruction.name)
    return frozenset(updates)


def log(value: float) -> float:
    """Base-2 logarithm; 0 for numbers less than 1."""
    return log2(max(value, 1.0))


def share_of(part: float, whole: float) -> float:
    """The share of a part in a whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0
