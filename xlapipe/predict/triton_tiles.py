"""How Triton's blocks divide a fusion, by the tile of the result that XLA chose for each block."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, prod, sqrt

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.plans.shapes import Shape, element_bits

_SIZES = re.compile(r'"output_tiles":\[\{"sizes":\[([^\]]*)\]')
_WARPS = re.compile(r'"num_warps":"(\d{1,3})"')
_THREADS_OF_A_WARP = 32
_MOST_ELEMENTS = 1 << 40
_ALIGNED_BITS = 128  # that a thread moves at once
_FREE = opcodes.RENAMES | opcodes.RESHAPES | opcodes.GIVEN | opcodes.FILLS | {"tuple"}


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a product.

    Attributes:
      sides: rows and columns of a tile.
      blocks: tiles that cover the result, those at its edges included.
    """

    sides: tuple[float, float]
    blocks: float

    @property
    def area(self) -> int:
        """Elements of a tile."""
        return round(self.sides[0] * self.sides[1])


@dataclass(frozen=True, slots=True)
class RowTile:
    """What one block of a fusion with sums along rows holds.

    Attributes:
      pieces: parts of a tile that are not next to each other in memory.
      rows_of_a_piece: rows, which are summed or normalised together, in each of them.
      operations_of_a_thread: elements of a thread, times one more than the operations on each.
    """

    pieces: int
    rows_of_a_piece: int
    operations_of_a_thread: float

    @property
    def separate(self) -> float:
        """Pieces for each row of one, at least 1: what a tile of rows far apart costs."""
        return max(1.0, self.pieces / self.rows_of_a_piece)


def tiles_of(product: Instruction) -> Tiles | None:
    """The tiles of a product by Triton; None if its configuration has none."""
    sizes = _sizes(product)
    if not sizes or not product.shape.arrays:
        return None
    rows, columns = sorted((1, *sizes))[-2:]
    batch = prod(sizes) // (rows * columns)
    array = product.shape.arrays[0]
    if len(array.dims) == len(sizes):
        blocks = prod(ceil(dim / size) for dim, size in zip(array.dims, sizes, strict=True))
    else:
        blocks = ceil(array.elements / prod(sizes))
    return Tiles((rows * batch, columns), max(1, blocks))


def misaligned_share(matrices: Iterable[Shape]) -> float:
    """The share of bytes in matrices whose rows do not start at multiples of 16 bytes.

    Such rows are read and written in smaller parts.
    """
    total = misaligned = 0.0
    for shape in matrices:
        if sum(dim > 1 for dim in shape.dims) < 2:
            continue
        bits = element_bits(shape.element) or 0
        minor = shape.order[0] if shape.order else -1
        total += shape.elements * bits
        misaligned += shape.elements * bits * (shape.dims[minor] * bits % _ALIGNED_BITS > 0)
    return misaligned / total if total else 0.0


def tiles_of_area(area: int, elements: int) -> Tiles:
    """Square tiles for a result of so many elements."""
    return Tiles((sqrt(area), sqrt(area)), max(1.0, elements / area))


def row_tile_of(fusion: Instruction, body: Computation, length: int) -> RowTile:
    """The tile of a block. Without one in XLA's configuration, a thread has one element.

    Args:
      length: elements of each sum.
    """
    largest = max(map(_elements, body.instructions), default=0)
    operations = 1 + sum(
        item.opcode not in _FREE and _elements(item) == largest for item in body.instructions
    )
    sizes, warps = _sizes(fusion), _WARPS.search(fusion.backend_config)
    if not sizes or warps is None or not fusion.shape.arrays:
        return RowTile(1, 1, operations)
    result = fusion.shape.arrays[0]
    length = max(1, length)
    summed = length if largest > result.elements else 1
    padded = prod(map(_power_of_two, sizes)) * _power_of_two(summed)
    held = padded / (_THREADS_OF_A_WARP * max(1, int(warps[1])))
    contiguous = _contiguous(result, sizes) * summed
    row = summed if summed > 1 else min(length, contiguous)
    pieces = max(1, round(padded / contiguous))
    return RowTile(pieces, max(1, contiguous // row), held * operations)


def _sizes(fusion: Instruction) -> tuple[int, ...]:
    """The tile; none if it has no elements or more than a GPU holds, as in a damaged file."""
    match = _SIZES.search(fusion.backend_config)
    sizes = tuple(map(int, re.findall(r"\d{1,10}", match[1]))) if match is not None else ()
    return sizes if 0 < prod(sizes) <= _MOST_ELEMENTS else ()


def _elements(instruction: Instruction) -> int:
    arrays = instruction.shape.arrays
    return arrays[0].elements if arrays else 0


def _contiguous(array: Shape, sizes: tuple[int, ...]) -> int:
    """Elements of a tile that are next to each other in memory."""
    if len(sizes) != len(array.dims):
        return prod(sizes)
    order = array.order or tuple(reversed(range(len(array.dims))))
    run = 1
    for dim in order:
        run *= min(sizes[dim], array.dims[dim])
        if sizes[dim] < array.dims[dim]:
            break
    return max(1, run)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
