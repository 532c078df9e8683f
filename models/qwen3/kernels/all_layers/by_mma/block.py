"""What the warps of a block do: fetch, compute, publish."""

from collections.abc import Sequence
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.block import Block, Memory
from models.qwen3.kernels.all_layers.by_mma import layout
from models.qwen3.kernels.all_layers.by_mma.attention import SHARED_BYTES, AttentionInRegisters
from models.qwen3.kernels.all_layers.by_mma.products import ROWS, Products
from models.qwen3.kernels.all_layers.by_mma.publishing import Publisher, Vectors
from models.qwen3.kernels.all_layers.ring import Place
from models.qwen3.kernels.all_layers.sizes import CHUNK, WARPS, Sizes

Value = Any


class BlockByMma(Block):
    """A thread's view of its block, of Qwen3-0.6B's sizes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.products = Products(self.o, self.ring, self.sums)
        self.packets = Vectors(self.o, *self.vectors)

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
        o, sizes, products, vectors = self.o, self.sizes, self.products, self.packets
        attention = AttentionInRegisters(
            o,
            sizes,
            self.ring,
            self.slots,
            o.shared_address(*self.work),
            self.heads,
            self.parts,
        )
        attention.start(o.global_address(self.frequencies))
        column = o.times(layout.own_column(o, o.warp, o.lane), 2)

        def gain(layer: Value, array: str) -> list[Value]:
            address = o.at(self.array(layer, array), column)
            return o.halves(o.load_words("global.nc", address, 2))

        def wide(layer: Value, place: Place, chunks: int, array: str, vector: Value) -> Place:
            operands, place = products.take_wide(place, chunks // 4)
            gains = gain(layer, array)
            epoch = o.plus(layer, 1)
            polled = packets.poll(o, vectors.addresses(vector), epoch, short=False)
            values = [o.as_float(low) for low, _ in polled]
            products.wide(operands, values, gains, 0)
            return place

        def body(layer: Value, place: Place) -> Place:
            epoch = o.plus(layer, 1)
            place = wide(layer, place, sizes.qkv.chunks, "before", vectors.hidden)
            place = attention.attend(self.attention_addresses(layer), epoch, place)
            operands, place = products.take_narrow(place, sizes.out.chunks // 2)
            polled = packets.poll(o, vectors.addresses(vectors.attended), epoch, short=True)
            values = [x for words in polled for x in packets.two_of(o, words)]
            splits = [products.split(values[:4]), products.split(values[4:])]
            products.narrow(operands, splits, 1)
            place = wide(layer, place, sizes.gate_up.chunks, "after", vectors.after_attention)
            operands, place = products.take_narrow(place, sizes.down.chunks // 2)
            polled = packets.poll(o, vectors.addresses(vectors.activations), epoch, short=True)
            products.narrow(operands, self._activations(polled), 1)
            return place

        self.ring.loop(sizes.layers, self.ring.start(), body)

    def _activations(self, polled: Sequence[packets.Words]) -> list[Any]:
        """Words of each set of columns. Activations are bfloat16: nothing is left of them."""
        o = self.o
        low, high = ([words[i] for words in polled] for i in (0, 1))
        third = [o.bytes_of(high[i], high[i + 1], "7632") for i in (0, 2)]
        none = [o.integer(0)] * 2
        return [(low[:2], none), (low[2:], none), (third, none)]

    def _publish(self) -> None:
        o = self.o
        publisher = Publisher(o, self.sizes, self.products, self.packets, self.heads, self.parts)
        hidden = self.embedded(
            embedding=o.global_address(self.embedding),
            token=o.global_address(self.token),
            number=publisher.index,
        )
        publisher.store_hidden(self.packets.hidden, hidden, o.integer(1))
        [hidden] = o.loop(
            self.sizes.layers,
            [hidden],
            lambda layer, hidden: [publisher.layer(hidden, o.plus(layer, 1))],
        )
        self.store_result(hidden, publisher.index, o.lane)

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
                    rows = 512 * number + sizes.intermediate * matrix
                    place = fetch(place, o.at(gate, 2 * sizes.hidden * rows), 2)
            return whole(place, layer, "down", sizes.down.chunks)

        ring.loop(sizes.layers, ring.start(), body)
