"""What the warps of a block do: fetch, or compute and publish."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.persistent import packets
from models.qwen3.kernels.persistent.attention import LayerAddresses, Slots
from models.qwen3.kernels.persistent.blocks import (
    AFTER,
    BEFORE,
    DOWN,
    GATE_UP,
    KEY_GAIN,
    KEYS,
    OUT,
    QKV,
    QUERY_GAIN,
    VALUES,
)
from models.qwen3.kernels.persistent.lanes import Lanes
from models.qwen3.kernels.stream.attention import Attention
from models.qwen3.kernels.stream.products import Products
from models.qwen3.kernels.stream.ring import Place, Ring
from models.qwen3.kernels.stream.sizes import (
    ARRAYS,
    CHUNK,
    COLUMNS,
    COPIES,
    HEAD,
    ROWS,
    WARPS,
    Matrix,
    Sizes,
)
from models.qwen3.kernels.stream.vectors import Inputs, Vector, pair_of, synchronize

Value = Any


@dataclass(frozen=True)
class References:
    """References of the kernel, as Mosaic's values.

    Attributes:
      layers: ARRAYS arrays of each layer.
      exchange: zeroed words of global memory, for packets.
    """

    layers: Sequence[Sequence[Value]]
    frequencies: Value
    position: Value
    token: Value
    embedding: Value
    result: Value
    ring: Value
    barriers: Value
    sums: Value
    table: Value
    angles: Value
    vector: Value
    exchange: Value


class Block:
    """A thread's view of its block."""

    def __init__(self, refs: References, sizes: Sizes, window: int) -> None:
        o = self.o = Lanes()
        self.refs, self.sizes = refs, sizes
        self.ring = Ring(
            o,
            o.shared_address(refs.ring),
            o.shared_address(refs.barriers),
            sizes.slots,
            window,
        )
        self.table = o.shared_address(refs.table)
        self.slots = Slots.of(o, o.global_address(refs.position), sizes.cache_length)
        address = o.global_address(refs.exchange)
        vectors = []
        for size in (
            sizes.hidden_bytes,
            sizes.hidden_bytes,
            sizes.attended_bytes,
            sizes.activations_bytes,
        ):
            vectors.append(Vector(o, address, size))
            address = o.at(address, COPIES * size)
        self.hidden, self.after_attention, self.attended, self.activations = vectors
        self.heads, self.parts = address, o.at(address, sizes.heads_bytes)

    def initialize(self) -> None:
        """Barriers, and the table of addresses; of all threads."""
        o = self.o
        with o.when(o.equal(o.thread, 0)):
            self.ring.initialize()
        with o.when(o.equal(o.thread, 128)):
            addresses = [o.global_address(ref) for layer in self.refs.layers for ref in layer]
            for number, address in enumerate(addresses):
                o.ptx("st.shared.b64 [$0], $1;", o.plus(self.table, 8 * number), address)
        o.ptx("barrier.sync 0;")

    def compute(self) -> None:
        """Of the computing warps."""
        o, sizes, refs = self.o, self.sizes, self.refs
        vector = o.shared_address(refs.vector)
        squares = o.shared_address(refs.sums)
        products = Products(o, self.ring, vector, o.plus(squares, 4 * WARPS))
        inputs = Inputs(o, sizes, vector, squares)
        attention = Attention(
            o,
            sizes,
            self.ring,
            vector,
            o.shared_address(refs.angles),
            self.heads,
            self.parts,
            self.attended,
            self.slots,
        )
        attention.start(o.global_address(refs.frequencies))

        def added(hidden: Value, matrix: Matrix, into: Vector, epoch: Value) -> Value:
            """Publishes the residual stream after a product; returns this thread's value of it."""
            synchronize(o)
            hidden = self._own(lambda number: o.add(hidden, products.total(matrix, number)))
            self._publish(into, hidden, epoch)
            return hidden

        def body(layer: Value, hidden: Value, slot: Value, parity: Value) -> list[Value]:
            place, epoch = Place(slot, parity), o.plus(layer, 1)
            inputs.normed(self.hidden, self._array(layer, BEFORE), epoch)
            place = products.compute(place, sizes.qkv, bfloat16=False)
            synchronize(o)
            self._publish_heads(products, inputs, epoch)
            arrays = (KEYS, VALUES, QUERY_GAIN, KEY_GAIN)
            addresses = LayerAddresses(*(self._array(layer, array) for array in arrays))
            place = attention.attend(addresses, epoch, place)
            inputs.attended(self.attended, epoch)
            place = products.compute(place, sizes.out, bfloat16=False)
            hidden = added(hidden, sizes.out, self.after_attention, epoch)
            inputs.normed(self.after_attention, self._array(layer, AFTER), epoch)
            place = products.compute(place, sizes.gate_up, bfloat16=False)
            synchronize(o)
            self._publish_activations(products, inputs, epoch)
            inputs.activations(self.activations, epoch)
            place = products.compute(place, sizes.down, bfloat16=True)
            hidden = added(hidden, sizes.down, self.hidden, o.plus(epoch, 1))
            return [hidden, *place.values()]

        hidden = self._own(self._embedding)
        self._publish(self.hidden, hidden, o.integer(1))
        hidden, *_ = o.loop(sizes.layers, [hidden, *self.ring.start().values()], body)
        own = sizes.out.rows
        column = o.plus(o.times(o.block, own), o.thread)
        address = o.at(o.global_address(refs.result), o.times(column, 4))
        o.ptx("st.global.f32 [$0], $1;", address, hidden, only=o.less(o.thread, own))

    def _array(self, layer: Value, array: int) -> Value:
        o = self.o
        return o.load_address(o.plus(self.table, o.times(layer, 8 * ARRAYS), 8 * array))

    def _own(self, value: Callable[[Value], Value]) -> Value:
        """Of threads that publish the residual stream: the value with their number in the block."""
        o, count = self.o, self.sizes.out.rows

        def own() -> list[Value]:
            _, number = o.quotient(o.thread, count)
            return [value(number)]

        publishes = o.less(o.thread, count * COPIES)
        [result] = o.choose(publishes, [o.f32], own, lambda: [o.real(0.0)])
        return result

    def _embedding(self, number: Value) -> Value:
        """Of the token, in this block's column `number`."""
        o, refs = self.o, self.refs
        [token] = o.load_words("global.nc", o.global_address(refs.token), 1)
        token = o.most(o.least(token, self.sizes.vocab_size - 1), 0)
        row = o.at_row(o.global_address(refs.embedding), token, 2 * self.sizes.hidden)
        column = o.plus(o.times(o.block, self.sizes.out.rows), number)
        text = "{ .reg .b16 t; ld.global.nc.b16 t, [$1]; mov.b32 $0, {0, t}; }"
        return o.as_float(o.pure(text, o.i32, o.at(row, o.times(column, 2))))

    def _publish(self, vector: Vector, hidden: Value, epoch: Value) -> None:
        o, count = self.o, self.sizes.out.rows
        words = packets.of_float(o, hidden, epoch)
        vector.store(count, lambda _: words, o.times(o.block, count))

    def _publish_heads(self, products: Products, inputs: Inputs, epoch: Value) -> None:
        o, matrix = self.o, self.sizes.qkv
        count = matrix.rows // 2
        with o.when(o.less(o.thread, count)):
            inverse = inputs.inverse()
            words = pair_of(
                o, o.thread, lambda row: o.mul(inverse, products.total(matrix, row)), epoch
            )
            offset = o.times(o.plus(o.times(o.block, count), o.thread), 8)
            packets.store(o, o.at(self.heads, offset), words)

    def _publish_activations(self, products: Products, inputs: Inputs, epoch: Value) -> None:
        o, sizes = self.o, self.sizes
        count, own = sizes.activation_packets, sizes.activations

        def words(packet: Value) -> packets.Words:
            inverse = inputs.inverse()

            def activation(number: Value) -> Value:
                # The last packet may have fewer than three.
                row = o.least(number, own - 1)
                gate = o.mul(inverse, products.total(sizes.gate_up, row))
                up = o.mul(inverse, products.total(sizes.gate_up, o.plus(row, own)))
                decay = o.exp2(o.mul(gate, o.real(-math.log2(math.e))))
                return o.mul(o.mul(gate, o.inverse(o.add(decay, o.real(1.0)))), up)

            first = o.times(packet, 3)
            a, b, c = (activation(o.plus(first, i)) for i in range(3))
            return packets.of_three(o, a, b, c, epoch)

        self.activations.store(count, words, o.times(o.block, count))

    def fetch(self) -> None:
        """Of the fetching warps: a row of each chunk, in the order in which `compute` takes."""
        o, sizes, slots = self.o, self.sizes, self.slots
        # Weights are read once per step, and should not evict the cache from L2.
        once, again = (
            o.pure(f"createpolicy.fractional.L2::{priority}.b64 $0, 1.0;", o.i64)
            for priority in ("evict_first", "evict_normal")
        )

        own_row = o.minus(o.warp, WARPS)

        def rows(place: Place, array: Value, first: Value, matrix: Matrix, count: int) -> Place:
            """`count` rows of a matrix from row `first` on."""
            own = o.at_row(array, o.plus(first, own_row), 2 * matrix.columns)

            def group(number: Value, slot: Value, parity: Value) -> list[Value]:
                own_group = o.at_row(own, number, 2 * ROWS * matrix.columns)

                def segment(number: Value, slot: Value, parity: Value) -> list[Value]:
                    columns = o.pick(
                        o.less(number, matrix.segments - 1), COLUMNS, matrix.last_columns
                    )
                    source = o.at(own_group, o.times(number, 2 * COLUMNS))
                    own_place = Place(slot, parity)
                    return self.ring.fetch(own_place, source, once, o.times(columns, 2)).values()

                return o.loop(matrix.segments, [slot, parity], segment)

            return Place(*o.loop(count // ROWS, place.values(), group))

        def whole(place: Place, array: Value, matrix: Matrix) -> Place:
            return rows(place, array, o.times(o.block, matrix.rows), matrix, matrix.rows)

        def body(layer: Value, slot: Value, parity: Value) -> list[Value]:
            place = whole(Place(slot, parity), self._array(layer, QKV), sizes.qkv)
            first = o.plus(
                o.times(slots.kv_head, slots.length * 2 * HEAD),
                o.times(slots.first, CHUNK),
                o.times(own_row, CHUNK // ROWS),
            )
            caches = [o.at(self._array(layer, array), first) for array in (KEYS, VALUES)]

            def chunk(number: Value, slot: Value, parity: Value) -> list[Value]:
                place = Place(slot, parity)
                for address in caches:
                    source = o.at(address, o.times(number, CHUNK))
                    place = self.ring.fetch(place, source, again, CHUNK // ROWS)
                return place.values()

            place = Place(*o.loop(slots.count, place.values(), chunk))
            place = whole(place, self._array(layer, OUT), sizes.out)
            gate_up = self._array(layer, GATE_UP)
            gate = o.times(o.block, sizes.activations)
            for first_row in (gate, o.plus(gate, sizes.intermediate)):
                place = rows(place, gate_up, first_row, sizes.gate_up, sizes.activations)
            place = whole(place, self._array(layer, DOWN), sizes.down)
            return place.values()

        o.loop(sizes.layers, self.ring.start().values(), body)
