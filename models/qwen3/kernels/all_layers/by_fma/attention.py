"""Attention whose queries are in shared memory: one warp for each has normed and rotated it."""

from collections.abc import Callable, Sequence
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.attention import (
    LANES,
    OWN,
    STATE,
    WORDS,
    Attention,
)
from models.qwen3.kernels.all_layers.block import Block, LayerAddresses
from models.qwen3.kernels.all_layers.by_fma.vectors import Vector
from models.qwen3.kernels.all_layers.ring import Place
from models.qwen3.kernels.all_layers.sizes import (
    CHUNK,
    COPIES,
    HEAD,
    KV_HEADS,
    PACKET,
    PARTS,
    THREADS,
    WARPS,
)

Value = Any
_ROW = 2 * HEAD
# Bits of a lane in its warp, which has a head in `_store_head`.
_DISTANCES = (16, 8, 4, 2, 1)


class AttentionInShared(Attention):
    """Attention of the computing warps, which have `Sizes.attention_bytes`.

    Attributes:
      angles: address of cosines, then signed sines, of the position.
      attended: the result.
    """

    def __init__(self, block: Block, shared: Value, angles: Value, attended: Vector) -> None:
        super().__init__(block, shared)
        self.angles, self.attended = angles, attended

    def start(self, frequencies: Value) -> None:
        """Stores cosines and signed sines of the position's angles.

        Args:
          frequencies: address of HEAD / 2 float32.
        """
        o = self.o
        with o.when(o.less(o.thread, HEAD)):
            number = o.bits(o.thread, HEAD // 2 - 1)
            [word] = o.load_words("global.nc", o.at(frequencies, o.times(number, 4)), 1)
            angle = self.angle(word)
            sign = o.pick(o.less(o.thread, HEAD // 2), o.real(-1.0), o.real(1.0))
            address = o.plus(self.angles, o.times(o.thread, 4))
            o.store_shared(address, o.cos(angle))
            o.store_shared(o.plus(address, 4 * HEAD), o.mul(sign, o.sin(angle)))
        o.synchronize()

    def attend(self, layer: LayerAddresses, epoch: Value, place: Place) -> Place:
        """Publishes this block's values; returns the place after the cache's chunks."""
        o, group = self.o, self.sizes.group
        owns_new = o.equal(self.slots.part, PARTS - 1)
        inside = o.less(self.slots.position, self.slots.length)
        heads = o.pick(owns_new, group + 2, group)
        with o.when(o.less(o.warp, heads)):
            self._store_head(layer, epoch, inside)
        o.synchronize()
        state = o.choose(
            o.both(o.both(owns_new, inside), o.equal(o.warp, WARPS - 1)),
            [o.f32] * (group * STATE),
            self._with_new,
            lambda: self.nothing() * group,
        )

        place, state = self.over_chunks(place, state, self._chunks)
        self._store_sums(state)
        o.synchronize()
        self._publish_part(epoch)
        self._publish_attended(epoch)
        return place

    def _store_head(self, layer: LayerAddresses, epoch: Value, inside: Value) -> None:
        """A warp's head: a query, the new key or the new value; after norm and rotation.

        The new ones are also written into the cache. A lane has 4 elements.
        """
        o, group = self.o, self.sizes.group
        is_query, is_value = o.less(o.warp, group), o.equal(o.warp, group + 1)
        after_queries = o.plus(self.sizes.config.q_size, o.times(self.slots.kv_head, HEAD))
        row = o.pick(
            is_query,
            o.times(o.plus(o.times(self.slots.kv_head, group), o.warp), HEAD),
            o.pick(is_value, o.plus(after_queries, KV_HEADS * HEAD), after_queries),
        )
        gain = o.pick(is_query, layer.query_gain, layer.key_gain)
        gains = o.halves(o.load_words("global.nc", o.at(gain, o.times(o.lane, 8)), 2))
        angles = self.load_angles(o.plus(self.angles, o.times(o.lane, 16)), 4)
        address = o.at(self.heads, o.plus(o.times(row, PACKET // 2), o.times(o.lane, 16)))
        polled = packets.poll(o, [address], epoch, short=True, offsets=[0])
        head = [x for words in polled for x in packets.two_of(o, words)]
        [turned] = self.normed_and_rotated([head], [gains], angles, _DISTANCES)
        result = [o.pick(is_value, x, y) for x, y in zip(head, turned, strict=True)]
        words = [o.bf16_pair(*result[i : i + 2]) for i in (0, 2)]
        own = o.plus(self.shared, o.times(o.warp, _ROW), o.times(o.lane, 8))
        o.ptx("st.shared.v2.b32 [$0], {$1,$2};", own, *words)
        is_new = o.both(o.less(group - 1, o.warp), inside)
        slot = o.plus(o.times(self.slots.kv_head, self.slots.length), self.slots.position)
        # Not computed where it would be outside.
        with o.when(is_new):
            cache = o.at_row(o.pick(is_value, layer.values, layer.keys), slot, _ROW)
            o.ptx("st.global.v2.b32 [$0], {$1,$2};", o.at(cache, o.times(o.lane, 8)), *words)

    def _with_new(self) -> list[Value]:
        """The state with the new token, which the lower half of the warp counts."""
        o, group = self.o, self.sizes.group
        key, value = self._row(group), self._row(group + 1)
        scores = [score for [score] in self._scores_by_head([key])]
        return self.of_new(scores, value, o.less(o.lane, LANES))

    def _row(self, number: int) -> list[Value]:
        """This lane's elements of a query, or of the new key or value."""
        o = self.o
        own = o.plus(self.shared, o.times(o.bits(o.lane, LANES - 1), 16))
        return o.halves(o.load_words("shared", own, WORDS, _ROW * number))

    def _scores_by_head(self, keys: Sequence[list[Value]]) -> list[list[Value]]:
        """The scores of each key. Queries are loaded each time: they fill many registers."""
        scores = []
        for head in range(self.sizes.group):
            query = self._row(head)
            scores.append(self.scores([(query, key) for key in keys]))
        return scores

    def _chunks(
        self, number: Value, place: Place, state: Sequence[Value]
    ) -> tuple[Place, list[Value]]:
        """The state after a chunk of keys and one of values: two slots of each half."""
        o, ring = self.o, self.ring
        own = o.plus(o.times(o.warp, CHUNK // WARPS), o.times(o.lane, 16))

        def rows(place: Place) -> list[list[Value]]:
            address = o.plus(ring.wait_for_one(place), own)
            return [
                o.halves(o.load_words("shared", address, WORDS, 2 * _ROW * row)) for row in range(2)
            ]

        scores = self._scores_by_head(rows(place))
        ring.release_one(place, warps=WARPS)
        place = ring.after(place, 1)
        seen = self.seen(number)
        values = rows(place)
        # Shuffles, which the compiler keeps, wait for the loads: only then is the chunk read.
        for row in values:
            o.across(row[0], 16)
        ring.release_one(place, warps=WARPS)
        place = ring.after(place, 1)
        return place, self.with_slots(state, seen, scores, values, masked=True)

    def _store_sums(self, state: Sequence[Value]) -> None:
        """Combines the warp's halves; stores maximum, total and weighted sums of each head."""
        o, group = self.o, self.sizes.group
        weights, sums = self._weights(), self._sums()
        own = o.plus(sums, o.times(o.warp, group * 4 * HEAD))
        own = o.plus(own, o.times(o.bits(o.lane, LANES - 1), 4 * OWN))
        lower = o.less(o.lane, LANES)
        for head in range(group):
            top, *rest = state[STATE * head : STATE * (head + 1)]
            new_top = o.maximum(top, o.across(top, 16))
            scale = o.exp2(o.sub(top, new_top))
            total, *values = o.sums_across([o.mul(x, scale) for x in rest], (16,))
            for i in (0, 4):
                address = o.plus(own, 4 * HEAD * head + 4 * i)
                o.store_shared(address, *values[i : i + 4], only=lower)
            at = o.plus(weights, o.times(o.warp, group * 8), 8 * head)
            o.store_shared(at, new_top, total, only=o.equal(o.lane, 0))

    def _publish_part(self, epoch: Value) -> None:
        """Combines the warps; a thread publishes an element, and the logarithm of its weight."""
        o, group = self.o, self.sizes.group
        own = self.sizes.attended

        def publish(number: Value) -> None:
            head, element = o.right(number, 7), o.bits(number, HEAD - 1)
            at_weights = o.plus(self._weights(), o.times(head, 8))
            pairs = [
                o.load_words("shared", at_weights, 2, group * 8 * warp) for warp in range(WARPS)
            ]
            at_sums = o.plus(self._sums(), o.times(head, 4 * HEAD), o.times(element, 4))
            values = [o.load_shared(at_sums, group * 4 * HEAD * warp) for warp in range(WARPS)]
            words = self.part_packet(pairs, values, epoch)
            index = o.plus(o.times(self.slots.kv_head, own * PARTS), number)
            offset = o.times(o.plus(o.times(index, PARTS), self.slots.part), PACKET)
            packets.store(o, o.at(self.parts, offset), words)

        self._by_thread(group * HEAD, publish)

    def _publish_attended(self, epoch: Value) -> None:
        """Combines the parts of this block's values: half a warp for each, a lane for each part."""
        o, own = self.o, self.sizes.attended
        first = o.at(self.parts, o.times(o.block, own * PARTS * PACKET))
        firsts = range(0, own * PARTS, THREADS)
        inside = o.less(o.thread, own * PARTS - firsts[-1])
        polled = packets.poll(
            o,
            [o.at(first, o.times(o.thread, PACKET))],
            epoch,
            short=True,
            at_once=1,
            offsets=[PACKET * number for number in firsts],
            in_last=inside,
        )
        for number, words in zip(firsts, polled, strict=True):
            value, weight = packets.two_of(o, words)
            top = weight
            for distance in (8, 4, 2, 1):
                top = o.maximum(top, o.across(top, distance))
            scale = o.exp2(o.sub(weight, top))
            total, whole = o.sums_across([scale, o.mul(scale, value)], (8, 4, 2, 1))
            whole = o.mul(whole, o.inverse(total))
            other = o.across(whole, 16)
            lower = o.less(o.lane, LANES)
            pair = o.pick(lower, whole, other), o.pick(lower, other, whole)
            index = o.plus(o.times(o.block, own // 2), o.right(o.plus(o.thread, number), 5))
            offset = o.plus(o.times(o.lane, self.attended.bytes), o.times(index, PACKET))
            writes = o.less(o.lane, COPIES)
            writes = o.both(writes, inside) if number == firsts[-1] else writes
            with o.when(writes):
                packet = packets.of_two(o, *pair, epoch)
                packets.store(o, o.at(self.attended.address, offset), packet)

    def _by_thread(self, count: int, run: Callable[[Value], None]) -> None:
        """Runs `run(number)` for each number below `count`, in whole warps."""
        o = self.o
        for first in range(0, count, THREADS):
            number = o.plus(o.thread, first)
            if first + THREADS <= count:
                run(number)
            else:
                with o.when(o.less(o.warp, (count - first) // 32)):
                    run(number)

    def _weights(self) -> Value:
        return self.o.plus(self.shared, (self.sizes.group + 2) * _ROW)

    def _sums(self) -> Value:
        return self.o.plus(self._weights(), WARPS * self.sizes.group * 8)
