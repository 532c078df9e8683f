"""What the warps of a block do: fetch, or compute and publish."""

from collections.abc import Callable
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.block import Block, Memory, swiglu
from models.qwen3.kernels.all_layers.by_fma.attention import AttentionInShared
from models.qwen3.kernels.all_layers.by_fma.products import Products
from models.qwen3.kernels.all_layers.by_fma.vectors import Inputs, Vector
from models.qwen3.kernels.all_layers.ring import Place
from models.qwen3.kernels.all_layers.sizes import (
    CHUNK,
    COLUMNS,
    COPIES,
    FETCHING_WARPS,
    ROWS,
    WARPS,
    Matrix,
    Sizes,
)

Value = Any


class BlockByFma(Block):
    """A thread's view of its block."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.hidden, self.after_attention, self.attended, self.activations = (
            Vector(self.o, *vector)
            for vector in zip(self.vectors, self.sizes.vectors_bytes, strict=True)
        )

    @staticmethod
    def memory(sizes: Sizes) -> Memory:
        return Memory(
            slots=sizes.slots,
            window=8,
            rows=FETCHING_WARPS,
            sums_bytes=sizes.sums_bytes,
            work_bytes=(sizes.angles_bytes, sizes.vector_bytes),
        )

    def compute(self) -> None:
        o, sizes = self.o, self.sizes
        angles, vector = (o.shared_address(ref) for ref in self.work)
        squares = self.sums
        products = Products(o, self.ring, vector, o.plus(squares, 4 * WARPS))
        inputs = Inputs(o, sizes, vector, squares)
        attention = AttentionInShared(self, vector, angles, self.attended)
        attention.start(o.global_address(self.frequencies))

        def added(hidden: Value, matrix: Matrix, into: Vector, epoch: Value) -> Value:
            """Publishes the residual stream after a product; returns this thread's value of it."""
            o.synchronize()
            hidden = self._own(lambda number: o.add(hidden, products.total(matrix, number)))
            self._publish(into, hidden, epoch)
            return hidden

        def body(layer: Value, hidden: Value, slot: Value, parity: Value) -> list[Value]:
            place, epoch = Place(slot, parity), o.plus(layer, 1)
            inputs.normed(self.hidden, self.array(layer, "before"), epoch)
            place = products.compute(place, sizes.qkv, bfloat16=False)
            o.synchronize()
            self._publish_heads(products, inputs, epoch)
            place = attention.attend(self.attention_addresses(layer), epoch, place)
            inputs.attended(self.attended, epoch)
            place = products.compute(place, sizes.out, bfloat16=False)
            hidden = added(hidden, sizes.out, self.after_attention, epoch)
            inputs.normed(self.after_attention, self.array(layer, "after"), epoch)
            place = products.compute(place, sizes.gate_up, bfloat16=False)
            o.synchronize()
            self._publish_activations(products, inputs, epoch)
            inputs.activations(self.activations, epoch)
            place = products.compute(place, sizes.down, bfloat16=True)
            hidden = added(hidden, sizes.down, self.hidden, o.plus(epoch, 1))
            return [hidden, *place.values()]

        hidden = self._own(
            lambda number: self.embedded(
                token=o.global_address(self.token),
                embedding=o.global_address(self.embedding),
                number=lambda: number,
            )
        )
        self._publish(self.hidden, hidden, o.integer(1))
        hidden, *_ = o.loop(
            sizes.config.num_hidden_layers, [hidden, *self.ring.start().values()], body
        )
        self.store_result(hidden, lambda: o.thread, o.thread)

    def _own(self, value: Callable[[Value], Value]) -> Value:
        """The value with the thread's number, in threads that publish the residual stream."""
        o, count = self.o, self.sizes.out.rows

        def own() -> list[Value]:
            _, number = o.quotient(o.thread, count)
            return [value(number)]

        publishes = o.less(o.thread, count * COPIES)
        [result] = o.choose(publishes, [o.f32], own, lambda: [o.real(0.0)])
        return result

    def _publish(self, vector: Vector, hidden: Value, epoch: Value) -> None:
        o, count = self.o, self.sizes.out.rows
        words = packets.of_float(o, hidden, epoch)
        vector.store(count, lambda _: words, o.times(o.block, count))

    def _publish_heads(self, products: Products, inputs: Inputs, epoch: Value) -> None:
        o, matrix = self.o, self.sizes.qkv
        count = matrix.rows // 2
        with o.when(o.less(o.thread, count)):
            inverse = inputs.inverse()
            first, second = (
                o.mul(inverse, products.total(matrix, o.plus(o.times(o.thread, 2), i)))
                for i in (0, 1)
            )
            words = packets.of_two(o, first, second, epoch)
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
                return swiglu(o, gate, up)

            first = o.times(packet, 3)
            a, b, c = (activation(o.plus(first, i)) for i in range(3))
            return packets.of_three(o, a, b, c, epoch)

        self.activations.store(count, words, o.times(o.block, count))

    def run_others(self) -> None:
        """Fetches a row of each chunk, in the order in which `compute` takes."""
        o, sizes = self.o, self.sizes
        once, again = self.policies()
        own_row = o.minus(o.warp, WARPS)

        def rows(place: Place, array: Value, first: Value, matrix: Matrix, count: int) -> Place:
            """`count` rows of a matrix from row `first` on."""
            own = o.at_row(array, o.plus(first, own_row), 2 * matrix.columns)

            def group(number: Value, place: Place) -> Place:
                own_group = o.at_row(own, number, 2 * ROWS * matrix.columns)

                def segment(number: Value, place: Place) -> Place:
                    has_next = o.less(number, matrix.segments - 1)
                    columns = o.pick(has_next, COLUMNS, matrix.last_columns)
                    source = o.at(own_group, o.times(number, 2 * COLUMNS))
                    return self.ring.fetch_row(place, source, once, o.times(columns, 2))

                return self.ring.loop(matrix.segments, place, segment)

            return self.ring.loop(count // ROWS, place, group)

        def whole(place: Place, array: Value, matrix: Matrix) -> Place:
            return rows(place, array, o.times(o.block, matrix.rows), matrix, matrix.rows)

        def of_cache(place: Place, address: Value) -> Place:
            return self.ring.fetch_row(place, address, again, o.integer(CHUNK // ROWS))

        def body(layer: Value, place: Place) -> Place:
            place = whole(place, self.array(layer, "qkv"), sizes.qkv)
            row = o.times(own_row, CHUNK // ROWS)
            place = self.fetch_cache(place, layer, of_cache, row)
            place = whole(place, self.array(layer, "out"), sizes.out)
            gate_up = self.array(layer, "gate_up")
            gate = o.times(o.block, sizes.activations)
            for first_row in (gate, o.plus(gate, sizes.config.intermediate_size)):
                place = rows(place, gate_up, first_row, sizes.gate_up, sizes.activations)
            return whole(place, self.array(layer, "down"), sizes.down)

        self.ring.loop(sizes.config.num_hidden_layers, self.ring.start(), body)
