"""The warp of a block that adds the computing warps' sums, and publishes the block's values.

It keeps the block's 8 values of the residual stream in registers, from the embedding to the end.
"""

from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.attention import combined
from models.qwen3.kernels.all_layers.block import swiglu
from models.qwen3.kernels.all_layers.by_mma import layout
from models.qwen3.kernels.all_layers.by_mma.attention import part_address
from models.qwen3.kernels.all_layers.by_mma.products import SQUARES, Products
from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.sizes import COPIES, PARTS, Sizes

Value = Any
# Packets of a block in each vector.
OWN = 8


@dataclass(frozen=True)
class Vectors:
    """Global addresses of the packets of each vector, in COPIES copies."""

    o: Lanes
    hidden: Value
    attended: Value
    after_attention: Value
    activations: Value

    def addresses(self, vector: Value) -> list[Value]:
        """Of the packets that this lane of a computing warp reads."""
        o = self.o
        copy = o.times(o.bits(o.block, COPIES - 1), layout.VECTOR_PACKETS)
        own = o.plus(copy, o.times(o.warp, 1024), o.times(o.lane, 16))
        return [o.at(vector, o.plus(own, load)) for load in (0, 512)]

    def store(self, vector: Value, offset: Value, words: packets.Words) -> None:
        """Publishes the packets of lanes 0 to 7, whose values lanes 8 to 31 have too."""
        o = self.o
        copy = o.times(o.right(o.lane, 3), layout.VECTOR_PACKETS)
        with o.when(o.less(o.lane, OWN * COPIES)):
            packets.store(o, o.at(vector, o.plus(offset, copy)), words)


@dataclass(frozen=True)
class Publisher:
    """The publishing warp.

    Attributes:
      heads: address of the packets of queries, keys and values.
      parts: address of the packets with each part's result of attention.
    """

    o: Lanes
    sizes: Sizes
    products: Products
    vectors: Vectors
    heads: Value
    parts: Value

    def index(self) -> Value:
        """The packet of a block that this lane has."""
        return self.o.bits(self.o.lane, OWN - 1)

    def layer(self, hidden: Value, epoch: Value) -> Value:
        """Publishes what the block computes of a layer; returns the residual stream after it."""
        o = self.o
        self._publish_heads(epoch)
        self._publish_attended(epoch)
        hidden = o.add(hidden, self.products.totals(1, self.index())[0])
        self.store_hidden(self.vectors.after_attention, hidden, epoch)
        self._publish_activations(epoch)
        hidden = o.add(hidden, self.products.totals(1, self.index())[0])
        self.store_hidden(self.vectors.hidden, hidden, o.plus(epoch, 1))
        return hidden

    def _inverse(self, squares: Value) -> Value:
        return self.o.inverse_rms(squares, self.sizes.hidden, self.sizes.eps)

    def store_hidden(self, vector: Value, hidden: Value, epoch: Value) -> None:
        offset = layout.packet_of_eight(self.o, self.o.block, self.index())
        self.vectors.store(vector, offset, packets.of_float(self.o, hidden, epoch))

    def _publish_heads(self, epoch: Value) -> None:
        """A row per lane: 32 rows of qkv."""
        o = self.o
        squares, row = self.products.totals(0, o.integer(SQUARES), o.lane)
        row = o.mul(self._inverse(squares), row)
        index = o.bits(o.lane, 15)
        pair = [o.of_lane(row, o.plus(o.times(index, 2), i)) for i in (0, 1)]
        words = packets.of_two(o, pair[0], pair[1], epoch)
        address = o.at(self.heads, layout.head_packet(o, o.block, index))
        with o.when(o.less(o.lane, 16)):
            packets.store(o, address, words)

    def _publish_attended(self, epoch: Value) -> None:
        """Combines 16 values of attention; the halves of the warp read half of the parts each."""
        o = self.o
        value, first = o.bits(o.lane, 15), o.times(o.right(o.lane, 4), PARTS // 2)
        addresses = [
            part_address(o, self.parts, o.block, o.plus(first, part), value)
            for part in range(PARTS // 2)
        ]
        polled = packets.poll(o, addresses, epoch, short=True, at_once=1)
        values, weights = zip(*(packets.two_of(o, words) for words in polled), strict=True)
        # Weights are logarithms: those of the maximum are 1.
        top, total, whole = combined(o, weights, [o.real(1.0)] * len(weights), values)
        scale = o.exp2(o.sub(top, o.maximum(top, o.across(top, 16))))
        total, whole = o.sums_across([o.mul(total, scale), o.mul(whole, scale)], (16,))
        whole = o.mul(whole, o.inverse(total))
        pair = [o.of_lane(whole, o.plus(o.times(self.index(), 2), i)) for i in (0, 1)]
        offset = layout.attended_packet(o, o.block, self.index())
        self.vectors.store(
            self.vectors.attended, offset, packets.of_two(o, pair[0], pair[1], epoch)
        )

    def _publish_activations(self, epoch: Value) -> None:
        """Lane `8 set + i` has activation i of the set; its gate and up rows are 8 rows apart."""
        o = self.o
        number = o.least(o.lane, self.sizes.activations - 1)
        gate_row = o.plus(o.times(o.right(number, 3), 16), o.bits(number, 7))
        rows = (o.integer(SQUARES), gate_row, o.plus(gate_row, 8))
        squares, gate, up = self.products.totals(0, *rows)
        inverse = self._inverse(squares)
        activation = swiglu(o, o.mul(inverse, gate), o.mul(inverse, up))
        pair, third = layout.activation_values(o, self.index())
        a, b, c = (o.of_lane(activation, lane) for lane in (pair, o.plus(pair, 1), third))
        offset = layout.packet_of_eight(o, o.block, self.index())
        words = packets.of_three(o, a, b, c, epoch)
        self.vectors.store(self.vectors.activations, offset, words)
