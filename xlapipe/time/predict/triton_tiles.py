"""How Triton's blocks divide a fusion, by the tile of the result that XLA chose for each block."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod, sqrt
from typing import NamedTuple

from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.plans.shapes import Shape, element_bits
from xlapipe.time.predict.arrays import first_array, minor_to_major
from xlapipe.time.predict.gpu import REGISTERS, SHARED_BYTES, THREADS, THREADS_OF_A_WARP

_SIZES = re.compile(r'"output_tiles":\[\{"sizes":\[([^\]]*)\]')
_WARPS = re.compile(r'"num_warps":"(\d{1,3})"')
_STAGES = re.compile(r'"num_stages":(\d{1,3})')
_STEP = re.compile(r'"sizes":\[([^\]]*)\]')
_DEPTH = 32  # terms of a step, if a configuration does not state them
_TUNED_DEPTH, _TUNED_STAGES, _TUNED_WARPS = 64, 3, 4
_REGISTERS_OF_A_THREAD = 16  # in addition to a product's accumulators
_MOST_ELEMENTS = 1 << 40
_ALIGNED_BITS = 128  # largest access of a thread
# Relative cost of a 16-bit element that is read alone, where rows start at odd elements or at
# others, with one stage and with several. The latter copy asynchronously, which needs over 2 bytes.
_SHORT_BITS, _ALONE_OF_SHORT = 16, {True: (0.8, 1.7), False: (0.35, 1.0)}


@dataclass(frozen=True, slots=True)
class ProductTile:
    """The tile of a product, which one block computes in steps over the terms.

    Attributes:
      sides: rows and columns of the tile.
      blocks: tiles that cover the result, those at its edges included.
      depth: terms of a step.
      terms: of each sum.
      stages: pipeline stages: steps whose reads are in flight at once.
      warps: of a block.
      element_bytes: of an operand.
      misaligned: elements of a step that are read one by one, since the rows of their matrix are
        not aligned to 16 bytes; weighted by their relative cost.
    """

    sides: tuple[float, float]
    blocks: float
    depth: int
    terms: float
    stages: int
    warps: int
    element_bytes: float
    misaligned: float = 0.0

    @property
    def area(self) -> int:
        return round(self.sides[0] * self.sides[1])

    @property
    def steps(self) -> int:
        return max(1, ceil(self.terms / self.depth))

    @property
    def step_bytes(self) -> float:
        return sum(self.sides) * self.depth * self.element_bytes

    @property
    def step_flops(self) -> float:
        return 2.0 * self.area * self.depth

    @property
    def resident(self) -> float:
        """Occupancy: resident blocks, limited by shared memory, registers and threads."""
        threads = self.warps * THREADS_OF_A_WARP
        registers = self.area + threads * _REGISTERS_OF_A_THREAD
        most = min(
            SHARED_BYTES / (self.stages * self.step_bytes),
            REGISTERS / registers,
            THREADS / threads,
        )
        return max(1.0, most)


class Pieces(NamedTuple):
    """How the tile of one block of a fusion without products is divided.

    Attributes:
      number: of its parts that are separate in memory.
      rows: which are summed or normalised together, in each of them.
    """

    number: int = 1
    rows: int = 1

    @property
    def separate(self) -> float:
        """Pieces per row of a piece, at least 1: the cost of a tile whose rows are far apart."""
        return max(1.0, self.number / self.rows)


def product_tile(
    product: Instruction,
    dot: Instruction | None,
    operands: Sequence[Shape],
    terms: float,
    element_bytes: float,
) -> ProductTile | None:
    """The tile of a product by Triton; None if its configuration has none."""
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
    step = _STEP.search(dot.backend_config) if dot is not None else None
    depth = prod(map(int, re.findall(r"\d{1,10}", step[1]))) if step is not None else 0
    depth = depth if 0 < depth <= _MOST_ELEMENTS else _DEPTH
    stages, warps = _STAGES.search(product.backend_config), _WARPS.search(product.backend_config)
    sides = (float(rows * batch), float(columns))
    in_stages = max(1, int(stages[1])) if stages is not None else 1
    return ProductTile(
        sides,
        max(1, blocks),
        depth,
        terms,
        in_stages,
        max(1, int(warps[1])) if warps is not None else 4,
        element_bytes,
        # The layout does not state whether an operand has the tile's rows or columns: use the mean.
        sum(depth * sum(sides) / 2 * _alone(operand, in_stages) for operand in operands),
    )


def tuned_tile(tile: ProductTile, area: int, elements: int) -> ProductTile:
    """A tile as a tuner would choose it, for a result of this number of elements."""
    side = sqrt(area)
    blocks = max(1.0, elements / area)
    return replace(
        tile,
        sides=(side, side),
        blocks=blocks,
        depth=_TUNED_DEPTH,
        stages=_TUNED_STAGES,
        warps=_TUNED_WARPS,
        misaligned=tile.misaligned / (tile.depth * sum(tile.sides)) * 2 * side * _TUNED_DEPTH,
    )


def _alone(matrix: Shape, stages: int) -> float:
    """Relative cost of an element of a matrix that is read one by one; 0 for other matrices."""
    if not misaligned_share([matrix]):
        return 0.0
    if element_bits(matrix.element) != _SHORT_BITS:
        return 1.0
    return _ALONE_OF_SHORT[_aligned_bits(matrix) == _SHORT_BITS][stages > 1]


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


def pieces_of_a_tile(fusion: Instruction, body: Computation, length: int) -> Pieces:
    """The pieces of a block's tile; one without a tile in XLA's configuration."""
    summed_arrays = [
        body.by_name[item.operands[0]]
        for item in body.instructions
        if item.opcode == "reduce" and item.operands
    ]
    # An operand that is read through a slice may have more elements than the sums have terms.
    candidates = summed_arrays or body.instructions
    largest = max((first_array(item.shape).elements for item in candidates), default=0)
    sizes = _sizes(fusion)
    if not sizes or not fusion.shape.arrays:
        return Pieces()
    result = fusion.shape.arrays[0]
    length = max(1, length)
    summed = length if largest > result.elements else 1
    padded = prod(map(_power_of_two, sizes)) * _power_of_two(summed)
    contiguous = _contiguous(result, sizes) * summed
    row = summed if summed > 1 else min(length, contiguous)
    return Pieces(max(1, round(padded / contiguous)), max(1, contiguous // row))


def dependent_sums(body: Computation) -> int:
    """Sums in the longest chain of which each needs the one before, as a variance needs a mean."""
    depth: dict[str, int] = {}
    for item in body.instructions:
        before = max((depth.get(name, 0) for name in item.operands), default=0)
        depth[item.name] = before + (item.opcode == "reduce")
    return max(1, depth.get(body.root, 0))


def _aligned_bits(array: Shape) -> int:
    minor = array.order[0] if array.order else -1
    bits = (array.dims[minor] if array.dims else 1) * (element_bits(array.element) or 0)
    return gcd(bits, _ALIGNED_BITS)


def _sizes(fusion: Instruction) -> tuple[int, ...]:
    """The tile; none if it has no elements or more than a GPU holds, as in a damaged file."""
    match = _SIZES.search(fusion.backend_config)
    sizes = tuple(map(int, re.findall(r"\d{1,10}", match[1]))) if match is not None else ()
    return sizes if 0 < prod(sizes) <= _MOST_ELEMENTS else ()


def _contiguous(array: Shape, sizes: tuple[int, ...]) -> int:
    """Elements of a tile that are contiguous in memory."""
    if len(sizes) != len(array.dims):
        return prod(sizes)
    run = 1
    for dim in minor_to_major(array):
        run *= min(sizes[dim], array.dims[dim])
        if sizes[dim] < array.dims[dim]:
            break
    return max(1, run)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
