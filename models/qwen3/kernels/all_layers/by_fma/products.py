"""Products of a block's rows with a vector in shared memory.

A warp takes a chunk of 4 rows and at most 1,024 columns. A lane has 8 neighbouring columns of each
256. Vectors of float32 have the first 4 of the 8 columns of all lanes before the other 4, so that 8
lanes read 128 bytes of different banks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.all_layers.by_mma.layout import IntegerOps
from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.ring import Place, Ring
from models.qwen3.kernels.all_layers.sizes import COLUMNS, ROWS, STEP, WARPS, Matrix

Value = Any
# A row has two sums, for even and odd columns, so that additions need not wait for one another.
_CHAINS = 2


def float_offset(step: int, half: int) -> int:
    """Bytes in a vector of float32 before 4 of the 8 columns of all lanes in a step."""
    return 4 * STEP * step + 2 * STEP * half


def float_place(ops: IntegerOps, column: Value) -> Value:
    """Bytes in a vector of float32 before a column."""
    step, within = ops.right(column, 8), ops.bits(column, STEP - 1)
    upper, lane = ops.bits(ops.right(within, 2), 1), ops.right(within, 3)
    return ops.plus(
        ops.times(step, 4 * STEP),
        ops.times(upper, 2 * STEP),
        ops.times(lane, 16),
        ops.times(ops.bits(within, 3), 4),
    )


@dataclass(frozen=True)
class Products:
    """Products of the computing warps.

    Attributes:
      vector: address of the vector.
      sums: address of the rows' sums, by row and segment.
    """

    o: Lanes
    ring: Ring
    vector: Value
    sums: Value

    def compute(self, place: Place, matrix: Matrix, *, bfloat16: bool) -> Place:
        """Stores the sums of this warp's chunks; returns the place after the matrix.

        Args:
          bfloat16: the vector's type; otherwise float32.
        """
        o = self.o
        own = self.ring.after(place, o.warp)
        count = o.right(o.minus(matrix.chunks + WARPS - 1, o.warp), WARPS.bit_length() - 1)

        def body(number: Value, own: Place) -> Place:
            self._chunk(own, o.plus(o.times(number, WARPS), o.warp), matrix, bfloat16)
            return self.ring.after(own, WARPS)

        self.ring.loop(count, own, body)
        return self.ring.after(place, matrix.chunks)

    def total(self, matrix: Matrix, row: Value) -> Value:
        """A row's sum over its segments, once all warps have stored them."""
        o = self.o
        address = o.plus(self.sums, o.times(row, 4 * matrix.segments))
        segments = range(matrix.segments)
        return o.tree([o.load_shared(address, 4 * segment) for segment in segments])

    def _chunk(self, place: Place, number: Value, matrix: Matrix, bfloat16: bool) -> None:
        o = self.o
        group, segment = o.quotient(number, matrix.segments)
        itemsize = 2 if bfloat16 else 4
        vector = o.plus(self.vector, o.times(segment, itemsize * COLUMNS), o.times(o.lane, 16))
        rows = o.plus(self.ring.wait_for_one(place), o.times(o.lane, 16))

        def steps(sums: Sequence[Value], numbers: range) -> list[Value]:
            sums = list(sums)
            for number in numbers:
                self._step(sums, vector, rows, number, bfloat16)
            return sums

        zeros = [o.real(0.0)] * (ROWS * _CHAINS)
        every, last = COLUMNS // STEP, matrix.last_columns // STEP
        sums = steps(zeros, range(last))
        if last < every:
            sums = o.choose(
                o.less(segment, matrix.segments - 1),
                [o.f32] * len(sums),
                lambda: steps(sums, range(last, every)),
                lambda: sums,
            )
        totals = [o.add(*sums[_CHAINS * row : _CHAINS * (row + 1)]) for row in range(ROWS)]
        own = self._sum_of_row(totals)
        # Its shuffles have waited for all that was loaded.
        self.ring.release_one(place, warps=1)
        row = o.plus(o.times(group, ROWS), self._row_of_lane())
        address = o.plus(self.sums, o.times(o.plus(o.times(row, matrix.segments), segment), 4))
        o.store_shared(address, own, only=o.equal(o.bits(o.lane, 7), 0))

    def _step(
        self, sums: list[Value], vector: Value, rows: Value, number: int, bfloat16: bool
    ) -> None:
        """Adds the products of 256 columns to `sums`."""
        o = self.o
        if bfloat16:
            x = o.halves(o.load_words("shared", vector, 4, 2 * STEP * number))
        else:
            words = [
                word
                for half in (0, 1)
                for word in o.load_words("shared", vector, 4, float_offset(number, half))
            ]
            x = [o.as_float(word) for word in words]
        for row in range(ROWS):
            weights = o.halves(
                o.load_words("shared", rows, 4, 2 * COLUMNS * row + 2 * STEP * number)
            )
            for column, (w, value) in enumerate(zip(weights, x, strict=True)):
                chain = _CHAINS * row + column % _CHAINS
                sums[chain] = o.fma(w, value, sums[chain])

    def _sum_of_row(self, totals: Sequence[Value]) -> Value:
        """The sum over all lanes of row `_row_of_lane`."""
        o = self.o
        rest = list(totals)
        for distance in (16, 8):
            upper = o.less(0, o.bits(o.lane, distance))
            half = len(rest) // 2
            kept = [o.pick(upper, b, a) for a, b in zip(rest[:half], rest[half:], strict=True)]
            given = [o.pick(upper, a, b) for a, b in zip(rest[:half], rest[half:], strict=True)]
            rest = [o.add(a, o.across(b, distance)) for a, b in zip(kept, given, strict=True)]
        [total] = o.sums_across(rest, (4, 2, 1))
        return total

    def _row_of_lane(self) -> Value:
        return self.o.right(self.o.lane, 3)
