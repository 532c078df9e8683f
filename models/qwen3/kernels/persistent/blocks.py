"""What the warps of a block do: fetch, compute, publish."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.persistent import layout, packets
from models.qwen3.kernels.persistent.attention import (
    Attention,
    LayerAddresses,
    Slots,
)
from models.qwen3.kernels.persistent.lanes import Lanes
from models.qwen3.kernels.persistent.products import Products
from models.qwen3.kernels.persistent.publishing import Publisher, Vectors, summed
from models.qwen3.kernels.persistent.ring import Place, Ring
from models.qwen3.kernels.persistent.sizes import (
    CHUNK,
    COMPUTING_WARPS,
    COPIES,
    DOWN_CHUNKS,
    GATE_UP_CHUNKS,
    HEAD,
    HIDDEN,
    INTERMEDIATE,
    O_CHUNKS,
    QKV_CHUNKS,
    QUERY_PACKETS,
    VECTOR_PACKETS,
)

Value = Any
# A layer's arrays, whose addresses are a row of a table in shared memory.
QKV, OUT, GATE_UP, DOWN, KEYS, VALUES, BEFORE, AFTER, QUERY_GAIN, KEY_GAIN = range(10)
ARRAYS = 10


@dataclass(frozen=True)
class Tuning:
    """What changes speed only.

    Attributes:
      slots: of the ring.
      window: chunks on their way at most. Packets wait for weights that are on their way at the
        same time.
    """

    slots: int = 25
    window: int = 4


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
    attention: Value
    exchange: Value


class Block:
    """A thread's view of its block."""

    def __init__(
        self, refs: References, *, cache_length: int, vocab_size: int, eps: float, tuning: Tuning
    ) -> None:
        o = self.o = Lanes()
        self.refs, self.eps, self.vocab_size = refs, eps, vocab_size
        self.ring = Ring(
            o,
            o.shared_address(refs.ring),
            o.shared_address(refs.barriers),
            tuning.slots,
            tuning.window,
        )
        self.products = Products(o, self.ring, o.shared_address(refs.sums))
        self.table = o.shared_address(refs.table)
        self.slots = Slots.of(o, o.global_address(refs.position), cache_length)
        exchange = o.global_address(refs.exchange)
        vector = VECTOR_PACKETS * COPIES
        self.vectors = Vectors(o, *(o.at(exchange, number * vector) for number in range(4)))
        self.heads = o.at(exchange, 4 * vector)
        self.parts = o.at(self.heads, 2 * QUERY_PACKETS)

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

    def run_others(self) -> None:
        """Of the warpgroup after the computing warps: one thread fetches, one warp publishes."""
        o = self.o
        fetches = o.both(o.equal(o.warp, COMPUTING_WARPS), o.equal(o.lane, 0))
        # After the code of a single thread, the compiler would assume that the publishing warp's
        # lanes may be apart.
        for condition, run in (
            (o.equal(o.warp, COMPUTING_WARPS + 1), self._publish),
            (fetches, self._fetch),
        ):
            o.choose(condition, [], _nothing_after(run), list)

    def compute(self) -> None:
        """Of the computing warps."""
        o, products, vectors = self.o, self.products, self.vectors
        attention = Attention(
            o,
            self.ring,
            o.shared_address(self.refs.attention),
            self.heads,
            self.parts,
            self.slots,
            self.eps,
        )
        attention.start(o.global_address(self.refs.frequencies))
        column = o.times(layout.own_column(o, o.warp, o.lane), 2)

        def gain(layer: Value, array: int) -> list[Value]:
            address = o.at(self._array(layer, array), column)
            return o.halves(o.load_words("global.nc", address, 2))

        def wide(layer: Value, place: Place, blocks: int, array: int, vector: Value) -> Place:
            operands, place = products.take_wide(place, blocks)
            gains = gain(layer, array)
            epoch = o.plus(layer, 1)
            polled = packets.poll(o, vectors.addresses(vector), epoch, short=False)
            values = [o.as_float(low) for low, _ in polled]
            products.wide(operands, values, gains, 0)
            summed(o, 0)
            return place

        def body(layer: Value, slot: Value, parity: Value) -> list[Value]:
            place, epoch = Place(slot, parity), o.plus(layer, 1)
            place = wide(layer, place, QKV_CHUNKS // 4, BEFORE, vectors.hidden)
            arrays = (KEYS, VALUES, QUERY_GAIN, KEY_GAIN)
            addresses = LayerAddresses(*(self._array(layer, array) for array in arrays))
            place = attention.attend(addresses, epoch, place)
            operands, place = products.take_narrow(place, O_CHUNKS // 2)
            polled = packets.poll(o, vectors.addresses(vectors.attended), epoch, short=True)
            values = [x for words in polled for x in packets.two_of(o, words)]
            splits = [products.split(values[:4]), products.split(values[4:])]
            products.narrow(operands, splits, 1)
            summed(o, 1)
            place = wide(layer, place, GATE_UP_CHUNKS // 4, AFTER, vectors.after_attention)
            operands, place = products.take_narrow(place, DOWN_CHUNKS // 2)
            polled = packets.poll(o, vectors.addresses(vectors.activations), epoch, short=True)
            products.narrow(operands, self._activations(polled), 1)
            summed(o, 1)
            return [place.slot, place.parity]

        start = self.ring.start()
        o.loop(len(self.refs.layers), [start.slot, start.parity], body)

    def _activations(self, polled: Sequence[packets.Words]) -> list[Any]:
        """Words of each set of columns. Activations are bfloat16: nothing is left of them."""
        o = self.o
        low, high = ([words[i] for words in polled] for i in (0, 1))
        third = [o.bytes_of(high[i], high[i + 1], "7632") for i in (0, 2)]
        none = [o.integer(0)] * 2
        return [(low[:2], none), (low[2:], none), (third, none)]

    def _array(self, layer: Value, array: int) -> Value:
        o = self.o
        return o.load_address(o.plus(self.table, o.times(layer, 8 * ARRAYS), 8 * array))

    def _publish(self) -> None:
        o, refs = self.o, self.refs
        publisher = Publisher(o, self.products, self.vectors, self.heads, self.parts, self.eps)
        hidden = publisher.start(
            o.global_address(refs.embedding), o.global_address(refs.token), self.vocab_size
        )
        [hidden] = o.loop(
            len(refs.layers),
            [hidden],
            lambda layer, hidden: [publisher.layer(hidden, o.plus(layer, 1))],
        )
        address = o.at(o.global_address(refs.result), o.times(publisher.column(), 4))
        o.ptx("st.global.f32 [$0], $1;", address, hidden, only=o.less(o.lane, 8))

    def _fetch(self) -> None:
        """Fetches in the order in which `compute` takes."""
        o, ring, slots = self.o, self.ring, self.slots
        # Weights are read once per step, and should not evict the cache from L2.
        once, again = (
            o.pure(f"createpolicy.fractional.L2::{priority}.b64 $0, 1.0;", o.i64)
            for priority in ("evict_first", "evict_normal")
        )

        def fetch(place: Place, address: Value, chunks: int, policy: Value = once) -> Place:
            for number in range(chunks):
                place = ring.fetch(place, o.at(address, CHUNK * number), policy)
            return place

        def body(layer: Value, slot: Value, parity: Value) -> list[Value]:
            place = Place(slot, parity)
            qkv = o.at(self._array(layer, QKV), o.times(o.block, CHUNK * QKV_CHUNKS))
            place = fetch(place, qkv, QKV_CHUNKS)
            first = o.plus(
                o.times(slots.kv_head, slots.length * 2 * HEAD), o.times(slots.first, CHUNK)
            )
            keys, values = (o.at(self._array(layer, array), first) for array in (KEYS, VALUES))

            def chunk(number: Value, slot: Value, parity: Value) -> list[Value]:
                place = Place(slot, parity)
                for address in (keys, values):
                    place = fetch(place, o.at(address, o.times(number, CHUNK)), 1, again)
                return [place.slot, place.parity]

            place = Place(*o.loop(slots.count, [place.slot, place.parity], chunk))
            out = o.at(self._array(layer, OUT), o.times(o.block, CHUNK * O_CHUNKS))
            place = fetch(place, out, O_CHUNKS)
            row = layout.first_activation_row(o, o.block)
            gate = o.at(self._array(layer, GATE_UP), o.times(row, 2 * HIDDEN))
            for number in range(GATE_UP_CHUNKS // 4):
                for matrix in (0, 1):
                    rows = 512 * number + INTERMEDIATE * matrix
                    place = fetch(place, o.at(gate, 2 * HIDDEN * rows), 2)
            down = o.at(self._array(layer, DOWN), o.times(o.block, CHUNK * DOWN_CHUNKS))
            place = fetch(place, down, DOWN_CHUNKS)
            return [place.slot, place.parity]

        start = ring.start()
        o.loop(len(self.refs.layers), [start.slot, start.parity], body)


def _nothing_after(run: Callable[[], None]) -> Callable[[], Sequence[Value]]:
    def branch() -> Sequence[Value]:
        run()
        return []

    return branch
