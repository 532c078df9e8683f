"""Sums of rows and columns, and how threads of XLA's emitter divide sums of columns."""

from math import ceil, prod
from typing import NamedTuple

from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.time.predict.gpu import THREADS_OF_A_WARP

ACCESSES_OF_WRITTEN, CHAIN_OF_WRITTEN = 3.0, 5.0
"""Of a sum along rows whose elements are results too: what a thread waits for, for each of them.

The read of one waits until the one before it was written: as so many accesses to memory, and so
many times what an operation takes elsewhere.
"""

# A block of the emitter of columns has this number of threads; that of short rows has fewer.
_THREADS_OF_COLUMNS = 1024
_LONGEST_VECTOR = 4
# Threads wait for what they write, and less for what they read.
_SHARE_OF_AN_OPERAND = 0.25
# Of such a wait, by the elements of a row that a thread has and whether tiles are whole.
_SHARE_OF_A_WAIT = {
    (1, False): 0.75,
    (1, True): 0.75,
    (2, False): 1.2,
    (2, True): 1.2,
    (4, False): 1.5,
    (4, True): 0.6,
}
# Blocks that together write parts of sectors as fast as the whole GPU does.
_BLOCKS_THAT_WRITE = 69
# LLVM unrolls the loop over rows, and then writes elements one by one, where it has few operands;
# the median of the others.
_FEW_OPERANDS, _SHARE_OF_FEW, _SHARE_OF_OTHERS = 2, 0.85, 0.5


class Reduced(NamedTuple):
    """What a reduction adds up.

    Attributes:
      along: `row` if that is contiguous in memory, otherwise `column`.
      length: elements of each sum.
      kept: contiguous elements beside each other, each of another sum; 1 of rows.
      sums: results.
    """

    along: str
    length: int
    kept: int
    sums: int


class ColumnTile(NamedTuple):
    """How a block adds up columns.

    Attributes:
      elements: that a thread adds up, one after another; threads beside a short row have none.
      elements_of_all: that each thread would have if none were idle.
      vector: of them that are beside each other in a row.
      whole: whether columns and rows fill tiles, so that a thread asks nowhere where they end.
    """

    elements: float
    elements_of_all: float
    vector: int
    whole: bool

    def accesses(self, results: int, operands: int) -> float:
        """What a thread waits for, for each element: as so many accesses to memory."""
        waits = _SHARE_OF_A_WAIT[self.vector, self.whole]
        return waits * (results + _SHARE_OF_AN_OPERAND * operands)

    def parts_of_a_sector(
        self, inner: Instruction, body: Computation, columns: Reduced, threads: int, per_block: int
    ) -> float:
        """How often a sector is written of results with all elements; 0 of other results.

        Few blocks write more slowly, and count as if they wrote more often.
        """
        if self.vector == 1 or not writes_elements(inner, columns):
            return 0.0
        given = [item.shape.text for item in body.instructions if item.opcode == "parameter"]
        operands = len(given) + any(text.startswith("pred") for text in given)
        share = _SHARE_OF_FEW if operands <= _FEW_OPERANDS else _SHARE_OF_OTHERS
        return share * self.vector * max(1.0, _BLOCKS_THAT_WRITE * per_block / max(1, threads))


def reduced(reduce: Instruction, body: Computation) -> Reduced:
    """What a reduction in a fusion's body adds up."""
    operand = body.by_name.get(reduce.operands[0]) if reduce.operands else None
    if operand is None or not operand.shape.arrays:
        return Reduced("row", 1, 1, 1)
    shape = operand.shape.arrays[0]
    along = set(reduce.contraction.dims if reduce.contraction is not None else ())
    length = prod(shape.dims[dim] for dim in along if dim < len(shape.dims))
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    kept = 1
    for dim in order:
        if dim in along:
            if shape.dims[dim] > 1:
                break
        else:
            kept *= shape.dims[dim]
    sums = shape.elements // max(1, length)
    return Reduced("column" if kept > 1 else "row", length, kept, sums)


def writes_elements(inner: Instruction, sums: Reduced) -> bool:
    """Whether what is summed, or as many elements, is a result of the fusion too."""
    return any(array.elements >= sums.length * sums.sums for array in inner.shape.arrays)


def column_tile(columns: Reduced, threads: int, per_block: int) -> ColumnTile:
    """The tile of a block, as `ColumnReductionFusion` of XLA's emitters/reduction.cc has it.

    Args:
      threads: of the launch; `per_block` of each block.
    """
    each = max(1, columns.length * columns.sums) / max(1, threads)
    if per_block != _THREADS_OF_COLUMNS:
        return ColumnTile(each, each, 1, whole=True)
    major = max(1, columns.sums // columns.kept)
    vector = 1
    while vector < _LONGEST_VECTOR and (
        major * ceil(columns.kept / (THREADS_OF_A_WARP * vector)) * per_block > threads
    ):
        vector *= 2
    rows = ceil(columns.length / THREADS_OF_A_WARP)
    whole = columns.kept % (THREADS_OF_A_WARP * vector) == columns.length % THREADS_OF_A_WARP == 0
    return ColumnTile(max(each, float(rows * vector)), each, vector, whole)
