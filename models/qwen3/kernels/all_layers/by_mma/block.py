"""What the warps of a block do: fetch, compute, publish.

The warp that adds the computing warps' sums, and publishes the block's values, keeps the block's 8
values of the residual stream in registers, from the embedding to the end.
"""

from collections.abc import Sequence
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.attention import combined
from models.qwen3.kernels.all_layers.block import Block, Memory, swiglu
from models.qwen3.kernels.all_layers.by_mma import layout
from models.qwen3.kernels.all_layers.by_mma.attention import (
    SHARED_BYTES,
    AttentionInRegisters,
    part_address,
)
from models.qwen3.kernels.all_layers.by_mma.products import NARROW, ROWS, SQUARES, WIDE, Products
from models.qwen3.kernels.all_layers.ring import Place
from models.qwen3.kernels.all_layers.sizes import CHUNK, COPIES, PARTS, WARPS, Sizes

Value = Any
# Packets of a block in each vector.
OWN = 8


class BlockByMma(Block):
    """A thread's view of its block, of Qwen3-0.6B's sizes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.products = Products(self.o, self.ring, self.sums)
        self.hidden, self.attended, self.after_attention, self.activations = self.vectors

    @staticmethod
    def memory(sizes: Sizes) -> Memory:
        sums = 2 * 4 * ROWS * WARPS
        return Memory(slots=25, window=4, rows=1, sums_bytes=sums, work_bytes=(SHARED_BYTES,))

    def run_others(self) -> None:
        """One thread fetches, one warp publishes."""
        o = self.o
        fetches = o.both(o.equal(o.warp, WARPS), o.equal(o.lane, 0))
        # After the code of a single thread, the compiler would assume that the publishing warp's
        # lanes may be apart.
        for condition, run in (
            (o.equal(o.warp, WARPS + 1), self._publish),
            (fetches, self._fetch),
        ):
            o.choose(condition, [], run, lambda: None)

    def compute(self) -> None:
        o, sizes, products = self.o, self.sizes, self.products
        attention = AttentionInRegisters(self, o.shared_address(*self.work))
        attention.start(o.global_address(self.frequencies))
        column = o.times(layout.own_column(o, o.warp, o.lane), 2)

        def wide(layer: Value, place: Place, chunks: int, array: str, vector: Value) -> Place:
            operands, place = products.take_wide(place, chunks // 4)
            address = o.at(self.array(layer, array), column)
            gains = o.halves(o.load_words("global.nc", address, 2))
            polled = self._poll(vector, o.plus(layer, 1), short=False)
            values = [o.as_float(low) for low, _ in polled]
            products.wide(operands, values, gains)
            return place

        def body(layer: Value, place: Place) -> Place:
            epoch = o.plus(layer, 1)
            place = wide(layer, place, sizes.qkv.chunks, "before", self.hidden)
            place = attention.attend(self.attention_addresses(layer), epoch, place)
            operands, place = products.take_narrow(place, sizes.out.chunks // 2)
            polled = self._poll(self.attended, epoch, short=True)
            values = [x for words in polled for x in packets.two_of(o, words)]
            splits = [products.split(values[:4]), products.split(values[4:])]
            products.narrow(operands, splits)
            place = wide(layer, place, sizes.gate_up.chunks, "after", self.after_attention)
            operands, place = products.take_narrow(place, sizes.down.chunks // 2)
            polled = self._poll(self.activations, epoch, short=True)
            products.narrow(operands, self._activations(polled))
            return place

        self.ring.loop(sizes.config.num_hidden_layers, self.ring.start(), body)

    def _activations(self, polled: Sequence[packets.Words]) -> list[Any]:
        """Words of each set of columns. Activations are bfloat16: nothing is left of them."""
        o = self.o
        low, high = ([words[i] for words in polled] for i in (0, 1))
        third = [o.bytes_of(high[i], high[i + 1], "7632") for i in (0, 2)]
        none = [o.integer(0)] * 2
        return [(low[:2], none), (low[2:], none), (third, none)]

    def _publish(self) -> None:
        o = self.o
        hidden = self.embedded(
            embedding=o.global_address(self.embedding),
            token=o.global_address(self.token),
            number=self._index,
        )
        self._store_hidden(self.hidden, hidden, o.integer(1))
        [hidden] = o.loop(
            self.sizes.config.num_hidden_layers,
            [hidden],
            lambda layer, hidden: [self._publish_layer(hidden, o.plus(layer, 1))],
        )
        self.store_result(hidden, self._index, o.lane)

    def _index(self) -> Value:
        """The packet of a block that this lane has."""
        return self.o.bits(self.o.lane, OWN - 1)

    def _publish_layer(self, hidden: Value, epoch: Value) -> Value:
        """Publishes what the block computes of a layer; returns the residual stream after it."""
        o = self.o
        self._publish_heads(epoch)
        self._publish_attended(epoch)
        hidden = o.add(hidden, self.products.totals(NARROW, self._index())[0])
        self._store_hidden(self.after_attention, hidden, epoch)
        self._publish_activations(epoch)
        hidden = o.add(hidden, self.products.totals(NARROW, self._index())[0])
        self._store_hidden(self.hidden, hidden, o.plus(epoch, 1))
        return hidden

    def _inverse(self, squares: Value) -> Value:
        return self.o.inverse_rms(squares, self.sizes.hidden, self.sizes.config.rms_norm_eps)

    def _store_hidden(self, vector: Value, hidden: Value, epoch: Value) -> None:
        offset = layout.packet_of_eight(self.o, self.o.block, self._index())
        self._store(vector, offset, packets.of_float(self.o, hidden, epoch))

    def _publish_heads(self, epoch: Value) -> None:
        """A row per lane: 32 rows of qkv."""
        o = self.o
        squares, row = self.products.totals(WIDE, o.integer(SQUARES), o.lane)
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
        pair = [o.of_lane(whole, o.plus(o.times(self._index(), 2), i)) for i in (0, 1)]
        offset = layout.attended_packet(o, o.block, self._index())
        self._store(self.attended, offset, packets.of_two(o, pair[0], pair[1], epoch))

    def _publish_activations(self, epoch: Value) -> None:
        """Lane `8 set + i` has activation i of the set; its gate and up rows are 8 rows apart."""
        o = self.o
        number = o.least(o.lane, self.sizes.activations - 1)
        gate_row = o.plus(o.times(o.right(number, 3), 16), o.bits(number, 7))
        rows = (o.integer(SQUARES), gate_row, o.plus(gate_row, 8))
        squares, gate, up = self.products.totals(WIDE, *rows)
        inverse = self._inverse(squares)
        activation = swiglu(o, o.mul(inverse, gate), o.mul(inverse, up))
        pair, third = layout.activation_values(o, self._index())
        a, b, c = (o.of_lane(activation, lane) for lane in (pair, o.plus(pair, 1), third))
        offset = layout.packet_of_eight(o, o.block, self._index())
        words = packets.of_three(o, a, b, c, epoch)
        self._store(self.activations, offset, words)

    def _poll(self, vector: Value, epoch: Value, *, short: bool) -> list[packets.Words]:
        """The packets of a vector that this lane of a computing warp supplies."""
        o = self.o
        copy = o.times(o.bits(o.block, COPIES - 1), layout.VECTOR_PACKETS)
        own = o.plus(copy, o.times(o.warp, 1024), o.times(o.lane, 16))
        addresses = [o.at(vector, o.plus(own, load)) for load in (0, 512)]
        return packets.poll(o, addresses, epoch, short=short)

    def _store(self, vector: Value, offset: Value, words: packets.Words) -> None:
        """Publishes the packets of lanes 0 to 7, whose values lanes 8 to 31 have too."""
        o = self.o
        copy = o.times(o.right(o.lane, 3), layout.VECTOR_PACKETS)
        with o.when(o.less(o.lane, OWN * COPIES)):
            packets.store(o, o.at(vector, o.plus(offset, copy)), words)

    def _fetch(self) -> None:
        """Fetches in the order in which `compute` takes."""
        o, ring, sizes = self.o, self.ring, self.sizes
        once, again = self.policies()

        def fetch(place: Place, address: Value, chunks: int) -> Place:
            for number in range(chunks):
                place = ring.fetch(place, o.at(address, CHUNK * number), once)
            return place

        def whole(place: Place, layer: Value, array: str, chunks: int) -> Place:
            first = o.at(self.array(layer, array), o.times(o.block, CHUNK * chunks))
            return fetch(place, first, chunks)

        def of_cache(place: Place, address: Value) -> Place:
            return ring.fetch(place, o.at(address, 0), again)

        def body(layer: Value, place: Place) -> Place:
            place = whole(place, layer, "qkv", sizes.qkv.chunks)
            place = self.fetch_cache(place, layer, of_cache)
            place = whole(place, layer, "out", sizes.out.chunks)
            row = layout.first_activation_row(o, o.block)
            gate = o.at(self.array(layer, "gate_up"), o.times(row, 2 * sizes.hidden))
            for number in range(sizes.gate_up.chunks // 4):
                for matrix in (0, 1):
                    rows = 512 * number + sizes.config.intermediate_size * matrix
                    place = fetch(place, o.at(gate, 2 * sizes.hidden * rows), 2)
            return whole(place, layer, "down", sizes.down.chunks)

        ring.loop(sizes.config.num_hidden_layers, ring.start(), body)
