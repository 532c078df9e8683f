"""Products of a block's rows with a vector, by mma, of which each warp computes a part.

An mma multiplies 16 rows by 16 columns with 8 vectors. Here all 8 vectors are parts of the same
one: each of its columns belongs to one of the 8, which is zero elsewhere, so that a lane passes on
only values that it polled itself. The values are float32, as a bfloat16 and the bfloat16 of what
the rounding left; the second is in a vector that is otherwise zero.

Even rows read the two 64-byte tiles of 128 bytes in order, odd rows in the opposite order, so that
8 lanes read 128 bytes of different banks. Sums of the two tiles are kept apart until the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir.dialects import llvm

from models.qwen3.kernels.all_layers.by_mma import layout
from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.ring import Place, Ring
from models.qwen3.kernels.all_layers.sizes import THREADS, WARPS

Value = Any
# A of an mma: 4 words of two bfloat16; by tile, then by s.
Operands = list[list[list[Value]]]
# 4 floats of a lane, as 2 words of bfloat16, and the words of what rounding left in lane ^ 4.
Split = tuple[list[Value], list[Value]]
# Rows of float32 sums of each warp in shared memory. The last row has sums of squares.
ROWS = 64
SQUARES = ROWS - 1
# Buffers of sums, which are used in turn.
WIDE, NARROW = 0, 1
# The named barriers of the two buffers of sums, at which the publishing warp waits; their threads.
_FIRST_BARRIER = 8
_THREADS = THREADS + 32


@dataclass(frozen=True)
class Products:
    """Products of the computing warps.

    Attributes:
      sums: address of both buffers, of [warps, ROWS] float32 in shared memory.
    """

    o: Lanes
    ring: Ring
    sums: Value

    @property
    def g(self) -> Value:
        return self.o.right(self.o.lane, 2)

    @property
    def j(self) -> Value:
        return self.o.bits(self.o.lane, 3)

    def take_wide(self, place: Place, blocks: int) -> tuple[list[list[Operands]], Place]:
        """Operands of `blocks` times 16 rows of 1,024 columns: by block, then half of columns."""
        o, first = self.o, place.slot
        place = self.ring.wait_for(place, 4 * blocks)
        operands = []
        for block in range(blocks):
            rows = []
            for half in (0, 1):
                chunk, within = layout.wide_row(o, self.g, 2 * block + half)
                rows.append(o.plus(self.ring.chunk_after(first, chunk), within, self._columns()))
            operands.append([self._operands(rows, 1024 * c) for c in (0, 1)])
        self.ring.release(first, 4 * blocks)
        return operands, place

    def take_narrow(self, place: Place, sets: int) -> tuple[list[Operands], Place]:
        """Operands of 8 rows of 2 halves of `sets` times 512 columns, by set.

        The 16 rows of an mma are the 8 rows of both halves.
        """
        o, first = self.o, place.slot
        place = self.ring.wait_for(place, 2 * sets)
        operands = []
        for number in range(sets):
            rows = []
            for half in (0, 1):
                chunk, within = layout.narrow_row(o, self.g, sets, half, number)
                rows.append(o.plus(self.ring.chunk_after(first, chunk), within, self._columns()))
            operands.append(self._operands(rows, 0))
        self.ring.release(first, 2 * sets)
        return operands, place

    def split(self, values: Sequence[Value]) -> Split:
        """4 floats as pairs of bfloat16, and what lane ^ 4 has left of its own."""
        o = self.o
        high = [o.bf16_pair(*values[:2]), o.bf16_pair(*values[2:])]
        left = [o.sub(a, b) for a, b in zip(values, o.halves(high), strict=True)]
        low = [o.bf16_pair(*left[:2]), o.bf16_pair(*left[2:])]
        return high, [o.across(word, 4) for word in low]

    def wide(
        self,
        operands: Sequence[Sequence[Operands]],
        values: Sequence[Value],
        gain: Sequence[Value],
    ) -> None:
        """Stores this warp's sums of the rows with `values * gain`, and that of values squared."""
        o = self.o
        split = self.split([o.mul(a, b) for a, b in zip(values, gain, strict=True)])
        squares = o.dot(values, values)
        zero = [o.real(0.0)] * 4
        sums = [[zero, zero] for _ in operands]
        steps = [16, 8, 4]
        for c in (0, 1):
            own = o.equal(o.right(self.g, 2), c)
            for s in (0, 1):
                vectors = [o.pick(own, word, 0) for word in self._vectors(split, s)]
                for block, by_half in enumerate(operands):
                    for tile in (0, 1):
                        sums[block][tile] = self._mma(
                            by_half[c][tile][s], vectors, sums[block][tile]
                        )
                if steps:
                    [squares] = o.sums_across([squares], [steps.pop(0)])
        rows = []
        for by_tile in sums:
            x = self._of_own_tile(by_tile)
            rows += [o.add(x[0], x[1]), o.add(x[2], x[3])]
        squares, *rows = o.sums_across([squares, *rows], (1, 2))
        for block in range(len(operands)):
            row = o.plus(16 * block, self.g, o.times(self.j, 8))
            total = o.pick(o.equal(self.j, 0), *rows[2 * block : 2 * block + 2])
            o.store_shared(self._sum_at(WIDE, o.warp, row), total, only=o.less(self.j, 2))
        squares_at = self._sum_at(WIDE, o.warp, o.integer(SQUARES))
        o.store_shared(squares_at, squares, only=o.equal(o.lane, 0))
        self._arrive(WIDE)

    def narrow(self, operands: Sequence[Operands], splits: Sequence[Split]) -> None:
        """Stores this warp's sums of 8 rows with the values of each set."""
        o = self.o
        zero = [o.real(0.0)] * 4
        sums = [[zero, zero], [zero, zero]]
        for by_tile, split in zip(operands, splits, strict=True):
            for s in (0, 1):
                vectors = self._vectors(split, s)
                for tile in (0, 1):
                    sums[s][tile] = self._mma(by_tile[tile][s], vectors, sums[s][tile])
        by_tile = [
            [o.add(a, b) for a, b in zip(*pair, strict=True)] for pair in zip(*sums, strict=True)
        ]
        x = self._of_own_tile(by_tile)
        # Vectors 0 to 3 are of the first half, which is rows 0 to 7.
        row = o.pick(o.less(self.j, 2), o.add(x[0], x[1]), o.add(x[2], x[3]))
        [row] = o.sums_across([row], (1, 2))
        o.store_shared(self._sum_at(NARROW, o.warp, self.g), row, only=o.equal(self.j, 0))
        self._arrive(NARROW)

    def _arrive(self, buffer: int) -> None:
        """This computing warp's sums are stored: it does not wait for the others."""
        self.o.named_barrier(_FIRST_BARRIER + buffer, _THREADS, arrive=True)

    def totals(self, buffer: int, *rows: Value) -> list[Value]:
        """Sums over all warps, once they are stored; of the publishing warp.

        All loads are issued before the first addition.
        """
        o = self.o
        o.named_barrier(_FIRST_BARRIER + buffer, _THREADS)
        parts = [
            [o.load_shared(self._sum_at(buffer, o.integer(warp), row)) for warp in range(WARPS)]
            for row in rows
        ]
        return [o.tree(values) for values in parts]

    def _columns(self) -> Value:
        """Bytes of this lane's first columns among 512."""
        return self.o.plus(self.o.times(self.o.warp, 128), self.o.times(self.j, 16))

    def _operands(self, rows: Sequence[Value], offset: int) -> Operands:
        """Operands of rows g and g + 8, of 64 columns."""
        low, high = (self._tiles(row, offset) for row in rows)
        return [
            [[a[2 * s], b[2 * s], a[2 * s + 1], b[2 * s + 1]] for s in (0, 1)]
            for a, b in zip(low, high, strict=True)
        ]

    def _tiles(self, row: Value, offset: int) -> list[list[Value]]:
        """8 elements of both tiles of a row; odd rows have the second tile first."""
        o = self.o
        odd = o.times(o.bits(self.g, 1), 64)
        addresses = (o.plus(row, odd), o.minus(o.plus(row, 64), odd))
        return [o.load_words("shared", address, 4, offset) for address in addresses]

    def _vectors(self, split: Split, s: int) -> list[Value]:
        """B of an mma: the values of lanes with this s, or what is left of their neighbours'."""
        o = self.o
        own = o.equal(o.bits(self.g, 1), s)
        return [o.pick(own, high, low) for high, low in zip(*split, strict=True)]

    def _of_own_tile(self, by_tile: Sequence[Sequence[Value]]) -> list[Value]:
        """Sums whose vectors, 2 j and 2 j + 1, have the columns of the tile that the row read."""
        o = self.o
        same = o.equal(o.bits(o.flip(self.g, self.j), 1), 0)
        return [o.pick(same, a, b) for a, b in zip(*by_tile, strict=True)]

    def _sum_at(self, buffer: int, warp: Value, row: Value) -> Value:
        o = self.o
        return o.plus(
            self.sums, WARPS * ROWS * 4 * buffer, o.times(warp, 4 * ROWS), o.times(row, 4)
        )

    def _mma(self, a: Sequence[Value], b: Sequence[Value], c: Sequence[Value]) -> list[Value]:
        f32 = self.o.f32
        result = llvm.inline_asm(
            llvm.StructType.get_literal([f32] * 4),
            [*a, *b, *c],
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
            "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
            has_side_effects=False,
        )
        return [llvm.extractvalue(f32, result, [number]) for number in range(4)]
