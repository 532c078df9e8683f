"""What the blocks of both forms share: memory, addresses, and the fetch of the cache."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.ring import Place, Ring
from models.qwen3.kernels.all_layers.sizes import (
    ARRAYS,
    CHUNK,
    CHUNK_SLOTS,
    COPIES,
    HEAD,
    PARTS,
    Sizes,
)

Value = Any


class LayerArrays(NamedTuple):
    """A layer's arrays, whose addresses are a row of a table in shared memory."""

    qkv: Any
    out: Any
    gate_up: Any
    down: Any
    keys: Any
    values: Any
    before: Any
    after: Any
    query_gain: Any
    key_gain: Any


@dataclass(frozen=True)
class Slots:
    """A block's part of the cache: chunks `first` to `first + count - 1` of `used` slots.

    Attributes:
      position: the new token's, which may be the cache's length or more: then it is not written.
      part: number of the block among those of its key/value head.
    """

    kv_head: Value
    part: Value
    position: Value
    used: Value
    first: Value
    count: Value
    length: int

    @classmethod
    def of(cls, o: Lanes, position_address: Value, length: int) -> "Slots":
        [position] = o.load_words("global.nc", position_address, 1)
        # No caller passes a negative one, which would address memory before the cache.
        position = o.pick(o.less(position, 0), length, position)
        kv_head, part = o.right(o.block, 4), o.bits(o.block, PARTS - 1)
        used = o.least(position, length)
        chunks = o.right(o.plus(used, CHUNK_SLOTS - 1), int(math.log2(CHUNK_SLOTS)))
        per_part = o.right(o.plus(chunks, PARTS - 1), int(math.log2(PARTS)))
        first = o.times(part, per_part)
        count = o.most(o.minus(o.least(o.plus(first, per_part), chunks), first), 0)
        return cls(kv_head, part, position, used, first, count, length)


@dataclass(frozen=True)
class LayerAddresses:
    """Global addresses of a layer's cache and gains."""

    keys: Value
    values: Value
    query_gain: Value
    key_gain: Value


@dataclass(frozen=True)
class Memory:
    """Shared memory of a form of block, and how its ring is filled.

    Attributes:
      slots, window, rows: of the ring.
      sums_bytes: for sums of products.
      work_bytes: of the arrays that the form needs in addition.
    """

    slots: int
    window: int
    rows: int
    sums_bytes: int
    work_bytes: tuple[int, ...]


class Block:
    """A thread's view of its block.

    Args:
      layers: references of the arrays of each layer, as Mosaic's values.
      refs: the other references: arguments, result, shared memory, and zeroed words of global
        memory for packets.

    Attributes:
      work: references of the arrays of `Memory.work_bytes`.
      vectors: addresses of the packets of four vectors, in COPIES copies.
      heads: address of the packets of queries, keys and values.
      parts: address of the packets with each part's result of attention.
    """

    def __init__(
        self, layers: Sequence[Sequence[Value]], refs: Sequence[Value], sizes: Sizes
    ) -> None:
        o = self.o = Lanes()
        self.layers, self.sizes = layers, sizes
        self.frequencies, position, self.token, self.embedding, self.result, *shared = refs
        ring, barriers, sums, table, *self.work, exchange = shared
        memory = self.memory(sizes)
        self.ring = Ring(
            o,
            o.shared_address(ring),
            o.shared_address(barriers),
            memory.slots,
            memory.window,
            memory.rows,
        )
        self.sums = o.shared_address(sums)
        self.table = o.shared_address(table)
        self.slots = Slots.of(o, o.global_address(position), sizes.cache_length)
        packets = o.global_address(exchange)
        self.vectors, offset = [], 0
        for size in sizes.vectors_bytes:
            self.vectors.append(o.at(packets, offset))
            offset += COPIES * size
        self.heads = o.at(packets, offset)
        self.parts = o.at(self.heads, sizes.heads_bytes)

    @staticmethod
    def memory(sizes: Sizes) -> Memory:
        raise NotImplementedError

    def initialize(self) -> None:
        """Barriers, and the table of addresses; of all threads."""
        o = self.o
        with o.when(o.equal(o.thread, 0)):
            self.ring.initialize()
        with o.when(o.equal(o.thread, 128)):
            addresses = [o.global_address(ref) for layer in self.layers for ref in layer]
            for number, address in enumerate(addresses):
                o.ptx("st.shared.b64 [$0], $1;", o.plus(self.table, 8 * number), address)
        o.ptx("barrier.sync 0;")

    def compute(self) -> None:
        """The code of the computing warps."""
        raise NotImplementedError

    def run_others(self) -> None:
        """The code of the warpgroup after the computing warps."""
        raise NotImplementedError

    def array(self, layer: Value, name: str) -> Value:
        """Address of a layer's array."""
        o, number = self.o, LayerArrays._fields.index(name)
        return o.load_address(o.plus(self.table, o.times(layer, 8 * ARRAYS), 8 * number))

    def attention_addresses(self, layer: Value) -> LayerAddresses:
        names = ("keys", "values", "query_gain", "key_gain")
        return LayerAddresses(*(self.array(layer, name) for name in names))

    def column(self, number: Callable[[], Value]) -> Value:
        """The column of the residual stream of the block's value with this number."""
        o = self.o
        return o.plus(o.times(o.block, self.sizes.out.rows), number())

    def embedded(self, token: Value, embedding: Value, number: Callable[[], Value]) -> Value:
        """The token's, in the block's column with this number.

        Args:
          token, embedding: global addresses. PTX keeps the order in which they are given.
        """
        o, sizes = self.o, self.sizes
        [token] = o.load_words("global.nc", token, 1)
        row = o.at_row(
            embedding, o.most(o.least(token, sizes.config.vocab_size - 1), 0), 2 * sizes.hidden
        )
        address = o.at(row, o.times(self.column(number), 2))
        text = "{ .reg .b16 t; ld.global.nc.b16 t, [$1]; mov.b32 $0, {0, t}; }"
        return o.as_float(o.pure(text, o.i32, address))

    def store_result(self, hidden: Value, number: Callable[[], Value], holder: Value) -> None:
        """Stores the block's value of the residual stream with this number.

        Args:
          holder: of the threads with the values: their numbers count up from 0.
        """
        o = self.o
        address = o.at(o.global_address(self.result), o.times(self.column(number), 4))
        o.ptx("st.global.f32 [$0], $1;", address, hidden, only=o.less(holder, self.sizes.out.rows))

    def policies(self) -> tuple[Value, Value]:
        """Policies of L2 for weights, which are read once per step, and for the cache.

        Weights should not evict the cache.
        """
        o = self.o
        once, again = (
            o.pure(f"createpolicy.fractional.L2::{priority}.b64 $0, 1.0;", o.i64)
            for priority in ("evict_first", "evict_normal")
        )
        return once, again

    def fetch_cache(
        self, place: Place, layer: Value, fetch: Callable[[Place, Value], Place], *offset: Value
    ) -> Place:
        """Fetches the block's slots: a chunk of keys and one of values in turn.

        Args:
          fetch: fetches from an address, `offset` bytes after the chunk's first.
        """
        o, slots = self.o, self.slots
        first = o.plus(
            o.times(slots.kv_head, slots.length * 2 * HEAD), o.times(slots.first, CHUNK), *offset
        )
        caches = [o.at(self.array(layer, name), first) for name in ("keys", "values")]

        def chunk(number: Value, place: Place) -> Place:
            for address in caches:
                place = fetch(place, o.at(address, o.times(number, CHUNK)))
            return place

        return self.ring.loop(slots.count, place, chunk)


def swiglu(o: Lanes, gate: Value, up: Value) -> Value:
    """`silu(gate) * up`."""
    decay = o.exp2(o.mul(gate, o.real(-math.log2(math.e))))
    return o.mul(o.mul(gate, o.inverse(o.add(decay, o.real(1.0)))), up)
