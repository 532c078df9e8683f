"""Vectors between blocks, as packets: who writes them, and how a block reads all of one.

The threads of all computing warps take part: each polls some packets and stores their values in
shared memory, in the order of `products`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.by_fma.products import float_place
from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.sizes import (
    COPIES,
    PACKET,
    THREADS,
    WARPS,
    Sizes,
)

Value = Any


@dataclass(frozen=True)
class Vector:
    """A vector's packets in global memory, in copies that different groups of blocks read."""

    o: Lanes
    address: Value
    bytes: int

    def store(self, count: int, words: Callable[[Value], packets.Words], first: Value) -> None:
        """Writes `count` packets, from number `first` on, into all copies.

        Args:
          words: of the packet with this number among the `count`.
        """
        o = self.o
        for done in range(0, count * COPIES, THREADS):
            thread = o.plus(o.thread, done)
            with o.when(o.less(thread, count * COPIES)):
                copy, number = o.quotient(thread, count)
                offset = o.plus(o.times(copy, self.bytes), o.times(o.plus(first, number), PACKET))
                packets.store(o, o.at(self.address, offset), words(number))

    def poll(self, epoch: Value, *, short: bool) -> list[tuple[int, Value, list[packets.Words]]]:
        """This thread's packets, two at a time: `2 (thread + first)` and the next.

        Returns:
          `first`, whether the thread has these packets, and their words.
        """
        o = self.o
        pairs = self.bytes // (2 * PACKET)
        firsts = range(0, pairs, THREADS)
        own = o.at(self.address, o.times(o.bits(o.block, COPIES - 1), self.bytes))
        inside = o.less(o.thread, pairs - firsts[-1])
        polled = packets.poll(
            o,
            [o.at(own, o.times(o.thread, 2 * PACKET))],
            epoch,
            short=short,
            offsets=[2 * PACKET * first for first in firsts],
            in_last=None if pairs % THREADS == 0 else inside,
        )
        always = o.less(o.thread, THREADS)
        return [
            (
                first,
                inside if first == firsts[-1] else always,
                polled[2 * number : 2 * number + 2],
            )
            for number, first in enumerate(firsts)
        ]


@dataclass(frozen=True)
class Inputs:
    """The vector in shared memory that is multiplied next.

    Attributes:
      address: of the vector.
      squares: address of each warp's sum of squares.
    """

    o: Lanes
    sizes: Sizes
    address: Value
    squares: Value

    def normed(self, vector: Vector, gain: Value, epoch: Value) -> None:
        """Stores a residual stream times `gain`, and the sums of its squares.

        Args:
          gain: address of bfloat16 values.
        """
        o = self.o
        pairs = self.sizes.hidden // 2
        own = o.at(gain, o.times(o.thread, 4))
        gains = []
        for first in range(0, pairs, THREADS):
            # Not after the array's end.
            address = (
                own
                if first + THREADS <= pairs
                else o.at(gain, o.times(o.least(o.thread, pairs - first - 1), 4))
            )
            gains.append(o.halves(o.load_words("global.nc", address, 1, 4 * first)))
        squares = o.real(0.0)
        place = o.plus(self.address, float_place(o, o.times(o.thread, 2)))
        polled = vector.poll(epoch, short=False)
        for (first, inside, words), factors in zip(polled, gains, strict=True):
            values = [o.as_float(low) for low, _ in words]
            squares = o.pick(inside, o.fma(values[0], values[0], squares), squares)
            squares = o.pick(inside, o.fma(values[1], values[1], squares), squares)
            scaled = [o.mul(a, b) for a, b in zip(values, factors, strict=True)]
            o.store_shared(o.plus(place, 4 * 2 * first), *scaled, only=inside)
        [squares] = o.sums_across([squares], (16, 8, 4, 2, 1))
        at = o.plus(self.squares, o.times(o.warp, 4))
        o.store_shared(at, squares, only=o.equal(o.lane, 0))
        o.synchronize()

    def attended(self, vector: Vector, epoch: Value) -> None:
        """Stores attention's output."""
        o = self.o
        polled = vector.poll(epoch, short=True)
        # Other warps of this block may still read what attention stored in the vector's place.
        o.synchronize()
        place = o.plus(self.address, float_place(o, o.times(o.thread, 4)))
        for first, inside, words in polled:
            values = [x for pair in words for x in packets.two_of(o, pair)]
            o.store_shared(o.plus(place, 4 * 4 * first), *values, only=inside)
        o.synchronize()

    def activations(self, vector: Vector, epoch: Value) -> None:
        """Stores activations in bfloat16."""
        o = self.o
        per_block, own = self.sizes.activation_packets, self.sizes.activations
        for first, inside, words in vector.poll(epoch, short=True):
            # The compiler would otherwise compute all these before the loop over layers.
            thread = o.opaque(o.thread)
            for i, (low, high) in enumerate(words):
                block, packet = o.quotient(o.plus(o.times(thread, 2), 2 * first + i), per_block)
                number = o.times(packet, 3)
                column = o.plus(o.times(block, own), number)
                address = o.plus(self.address, o.times(column, 2))
                for third, value in enumerate((low, o.right(low, 16), o.right(high, 16))):
                    counts = o.both(inside, o.less(o.plus(number, third), own))
                    with o.when(counts):
                        o.ptx(
                            "{ .reg .b16 t, u; mov.b32 {t, u}, $1; st.shared.b16 [$0], t; }",
                            o.plus(address, 2 * third),
                            value,
                        )
        o.synchronize()

    def inverse(self) -> Value:
        """The inverse RMS of the residual stream that was stored."""
        o = self.o
        words = [
            word
            for first in range(0, WARPS, 4)
            for word in o.load_words("shared", self.squares, 4, 4 * first)
        ]
        total = o.tree([o.as_float(word) for word in words])
        return o.inverse_rms(total, self.sizes.hidden, self.sizes.config.rms_norm_eps)
