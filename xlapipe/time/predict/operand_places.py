"""Elements of its operands that an instruction's threads read, from those of its result.

An index is one array per dimension, with one number per thread.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from xlapipe.plans import Instruction, opcodes
from xlapipe.plans.shapes import Shape, element_bits
from xlapipe.time.predict.arrays import minor_to_major
from xlapipe.time.predict.index_values import Array

Index = tuple[Array, ...]
# Terms of a thread's sum that are followed: all, or a sample of many.
_ALL_TERMS, _TERMS = 24, 8


def have_elements(shapes: Iterable[Shape]) -> bool:
    """Whether all arrays have elements: nothing is read from an empty one."""
    return not any(0 in shape.dims for shape in shapes)


def element_bytes(shape: Shape) -> int:
    return max(1, (element_bits(shape.element) or 8) // 8)


def unravelled(place: Array, shape: Shape) -> Index:
    """The index of each offset in memory order."""
    index: list[Array] = [place] * len(shape.dims)
    for dim in minor_to_major(shape):
        size = max(1, shape.dims[dim])
        index[dim] = place % size if size > 1 else np.zeros_like(place)
        place = place // size
    return tuple(index)


def raveled(index: Sequence[Array], shape: Shape) -> Array:
    """The offset in memory of each index, in elements."""
    place: Any = np.zeros(len(index[0]), np.int64) if index else np.zeros(1, np.int64)
    stride = 1
    for dim in minor_to_major(shape):
        if shape.dims[dim] > 1:
            place = place + index[dim] * stride
            stride *= shape.dims[dim]
    return np.asarray(place)


def joined_dimension(result: Shape, shapes: Sequence[Shape]) -> int:
    return next((d for d, n in enumerate(result.dims) if any(s.dims[d] != n for s in shapes)), 0)


def index_of_operand(
    instruction: Instruction, position: int, operand: Shape, index: Index
) -> tuple[Index | None, Array | None]:
    """Index of an operand, and which threads read it if not all do; None if no thread does."""
    opcode = instruction.opcode
    contraction = instruction.contraction
    dims = contraction.dims if contraction is not None else ()
    if not operand.dims:
        return (), None
    if opcode in opcodes.RESHAPES:
        result = instruction.shape.arrays[0]
        if result.dims == operand.dims and minor_to_major(result) == minor_to_major(operand):
            return index, None
        if result.elements != operand.elements:
            return None, None
        return unravelled(raveled(index, result), operand), None
    if opcode == "broadcast":
        return tuple(index[dim] for dim in dims), None
    if opcode == "transpose":
        places: list[Array] = [index[0]] * len(dims)
        for dim, part in zip(dims, index, strict=True):
            places[dim] = part
        return tuple(places), None
    if opcode == "slice" and contraction is not None and contraction.starts:
        moved = zip(index, dims, contraction.starts, strict=True)
        return tuple(part * stride + start for part, stride, start in moved), None
    if opcode == "dynamic-slice" and position == 0:
        sizes = instruction.shape.arrays[0].dims
        moved_by = ((n - size) // 2 for n, size in zip(operand.dims, sizes, strict=True))
        return tuple(part + by for part, by in zip(index, moved_by, strict=True)), None
    if opcode == "pad" and contraction is not None and contraction.starts and position == 0:
        return _within_padding(operand, dims, contraction.starts, index)
    return (index if len(operand.dims) == len(index) else None), None


def has_interior(pad: Instruction) -> bool:
    return pad.contraction is not None and any(pad.contraction.dims)


def _within(places: Sequence[Array], sizes: Sequence[int]) -> tuple[Index, Array]:
    """Places clipped to an array of these sizes, and which of them are inside of it."""
    inside = np.ones(len(places[0]) if places else 1, bool)
    for place, size in zip(places, sizes, strict=True):
        inside &= (place >= 0) & (place < size)
    clipped = (np.clip(place, 0, size - 1) for place, size in zip(places, sizes, strict=True))
    return tuple(clipped), inside


def _within_padding(
    operand: Shape, interior: Sequence[int], starts: Sequence[int], index: Index
) -> tuple[Index, Array]:
    moved = [part - low for part, low in zip(index, starts, strict=True)]
    steps = zip(moved, interior, strict=True)
    places, inside = _within([place // (1 + step) for place, step in steps], operand.dims)
    for place, step in zip(moved, interior, strict=True):
        if step:
            inside &= place % (1 + step) == 0
    return places, inside


def of_joined(
    joined: Instruction, shapes: Sequence[Shape], index: Index
) -> Iterator[tuple[str, Index, Array | None]]:
    """Each operand of a concatenation, its index, and which threads read it."""
    dim, start = joined_dimension(joined.shape.arrays[0], shapes), 0
    for name, shape in zip(joined.operands, shapes, strict=False):
        moved = (*index[:dim], index[dim] - start, *index[dim + 1 :])
        places, inside = _within(moved, shape.dims)
        yield name, places, inside if len(shapes) > 1 else None
        start += shape.dims[dim]


def of_update(
    instruction: Instruction, shapes: Sequence[Shape], index: Index
) -> Iterator[tuple[str, Index, Array | None]]:
    """The array and the update of a dynamic-update-slice in the middle, as of a concatenation."""
    whole, part = (shape.dims for shape in shapes[:2])
    starts = ((all_of_it - size) // 2 for all_of_it, size in zip(whole, part, strict=True))
    moved = [place - start for place, start in zip(index, starts, strict=True)]
    places, inside = _within(moved, part)
    yield instruction.operands[0], index, ~inside
    yield instruction.operands[1], places, inside


def window_of(instruction: Instruction, operand: Shape) -> tuple[int, ...]:
    """Sizes of the part of an operand that each sum of a reduction or a window adds up."""
    dims = instruction.contraction.dims if instruction.contraction is not None else ()
    if instruction.opcode == "reduce-window":
        return tuple(dims)
    return tuple(operand.dims[dim] for dim in dims)


def terms_of(
    instruction: Instruction, operand: Shape, index: Index, count: int
) -> Iterator[tuple[Index, Array]]:
    """Elements at which each thread reads sampled terms of its sum, and which threads have them."""
    contraction, window = instruction.contraction, window_of(instruction, operand)
    assert contraction is not None
    number = max(1, prod(window))
    terms = np.arange(number) if number <= _ALL_TERMS else np.arange(_TERMS)
    if instruction.opcode == "reduce":
        kept = [dim for dim in range(len(operand.dims)) if dim not in contraction.dims]
        parts = dict(zip(kept, index, strict=True))
        for steps in zip(*np.unravel_index(terms, window), strict=True):
            summed = dict(zip(contraction.dims, steps, strict=True))
            places = {dim: np.full(count, step, np.int64) for dim, step in summed.items()}
            whole = {**parts, **places}
            yield tuple(whole[dim] for dim in range(len(operand.dims))), np.ones(count, bool)
        return
    result = instruction.shape.arrays[0]
    starts = contraction.starts or (0,) * len(window)
    terms = np.linspace(0, number - 1, len(terms)).astype(int)
    for steps in zip(*np.unravel_index(terms, window), strict=True):
        moved = [
            part * max(1, round(size / max(1, of_result))) - low + step
            for part, step, low, size, of_result in zip(
                index, steps, starts, operand.dims, result.dims, strict=True
            )
        ]
        yield _within(moved, operand.dims)


def same_terms(instruction: Instruction, operand: Shape, elements: int) -> float:
    """Number of terms of a block's sums that are the same element, where windows overlap."""
    if instruction.opcode != "reduce-window" or instruction.contraction is None:
        return 1.0
    result, same, before = instruction.shape.arrays[0], 1.0, 1
    for dim in minor_to_major(result):
        window, size = instruction.contraction.dims[dim], result.dims[dim]
        if round(operand.dims[dim] / max(1, size)) <= 1:
            beside = min(max(1, elements // before), max(1, size))
            same *= window * beside / (window + beside - 1)
        before *= max(1, size)
    return same
