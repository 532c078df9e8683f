"""Row and column reductions, and how XLA's emitter divides column reductions among threads."""

from math import ceil, prod
from typing import NamedTuple

from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.time.predict.arrays import minor_to_major
from xlapipe.time.predict.gpu import THREADS_OF_A_WARP

# Threads of a block of XLA's column emitter; blocks for short rows have fewer.
_THREADS_OF_COLUMNS = 1024
_LONGEST_VECTOR = 4
# A read stalls a thread for this share of the time of a write.
_SHARE_OF_AN_OPERAND = 0.25
# Share of such a stall, by elements of a row per thread and whether tiles are full.
_SHARE_OF_A_WAIT = {
    (1, False): 0.75,
    (1, True): 0.75,
    (2, False): 1.2,
    (2, True): 1.2,
    (4, False): 1.5,
    (4, True): 0.6,
}


class Reduced(NamedTuple):
    """Sizes of a reduction.

    Attributes:
      along: `row` if that is contiguous in memory, otherwise `column`.
      length: elements of each sum.
      kept: adjacent elements that belong to different sums; 1 for rows.
      sums: number of results.
    """

    along: str
    length: int
    kept: int
    sums: int


class ColumnTile(NamedTuple):
    """A block's tile of a column reduction.

    Attributes:
      elements: that a thread adds up one after another; threads beyond a short row have none.
      elements_of_all: that each thread would have if none were idle.
      vector: those of them that are adjacent in a row.
      whole: whether columns and rows fill tiles, so that threads check no bounds.
    """

    elements: float
    elements_of_all: float
    vector: int
    whole: bool

    def accesses(self, results: int, operands: int) -> float:
        """Stall of a thread per element, in dependent accesses to memory."""
        waits = _SHARE_OF_A_WAIT[self.vector, self.whole]
        return waits * (results + _SHARE_OF_AN_OPERAND * operands)


def reduced(reduce: Instruction, body: Computation) -> Reduced:
    """What a reduction in a fusion's body adds up."""
    operand = body.by_name.get(reduce.operands[0]) if reduce.operands else None
    if operand is None or not operand.shape.arrays:
        return Reduced("row", 1, 1, 1)
    shape = operand.shape.arrays[0]
    along = set(reduce.contraction.dims if reduce.contraction is not None else ())
    length = prod(shape.dims[dim] for dim in along if dim < len(shape.dims))
    kept = 1
    for dim in minor_to_major(shape):
        if dim in along:
            if shape.dims[dim] > 1:
                break
        else:
            kept *= shape.dims[dim]
    sums = shape.elements // max(1, length)
    return Reduced("column" if kept > 1 else "row", length, kept, sums)


def column_tile(columns: Reduced, threads: int, per_block: int) -> ColumnTile:
    """The tile of a block, as in `ColumnReductionFusion` of XLA's emitters/reduction.cc."""
    elements_per_thread = max(1, columns.length * columns.sums) / max(1, threads)
    if per_block != _THREADS_OF_COLUMNS:
        return ColumnTile(elements_per_thread, elements_per_thread, 1, whole=True)
    major = max(1, columns.sums // columns.kept)
    vector = 1
    while vector < _LONGEST_VECTOR and (
        major * ceil(columns.kept / (THREADS_OF_A_WARP * vector)) * per_block > threads
    ):
        vector *= 2
    rows = ceil(columns.length / THREADS_OF_A_WARP)
    whole = columns.kept % (THREADS_OF_A_WARP * vector) == columns.length % THREADS_OF_A_WARP == 0
    return ColumnTile(
        max(elements_per_thread, float(rows * vector)), elements_per_thread, vector, whole
    )
