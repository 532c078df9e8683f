"""Attention of a block to its part of a key/value head's slots, by all computing warps.

A half of a warp reads one slot's key or value at once: its lane l has elements 8 l to 8 l + 7. Each
half keeps a running softmax of all query heads over its slots; the block combines them at the end.
The new token counts in one half of one block only, which also writes it into the cache.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.persistent import packets
from models.qwen3.kernels.persistent.attention import (
    LOWEST,
    SCALE,
    TWO_PI,
    LayerAddresses,
    Slots,
)
from models.qwen3.kernels.persistent.lanes import Lanes
from models.qwen3.kernels.stream.packets import poll
from models.qwen3.kernels.stream.ring import Place, Ring
from models.qwen3.kernels.stream.sizes import (
    CHUNK,
    CHUNK_SLOTS,
    COPIES,
    HEAD,
    KV_HEADS,
    PACKET,
    PARTS,
    THREADS,
    WARPS,
    Sizes,
)
from models.qwen3.kernels.stream.vectors import Vector, synchronize

Value = Any
# Elements of a lane, lanes of a head, and words of a lane's elements in bfloat16.
_OWN = 8
_LANES = HEAD // _OWN
_WORDS = _OWN // 2
# Of a query head: maximum of the scores, sum of the weights, weighted sums of 8 elements.
_STATE = 2 + _OWN
_ROW = 2 * HEAD


@dataclass(frozen=True)
class Attention:
    """Attention of the computing warps.

    Attributes:
      shared: address of `Sizes.attention_bytes`.
      angles: address of cosines, then signed sines, of the position.
      heads: address of the packets of queries, keys and values.
      parts: address of the packets with each part's result.
      attended: the result.
    """

    o: Lanes
    sizes: Sizes
    ring: Ring
    shared: Value
    angles: Value
    heads: Value
    parts: Value
    attended: Vector
    slots: Slots

    def start(self, frequencies: Value) -> None:
        """Stores cosines and signed sines of the position's angles.

        Args:
          frequencies: address of HEAD / 2 float32.
        """
        o = self.o
        with o.when(o.less(o.thread, HEAD)):
            number = o.bits(o.thread, HEAD // 2 - 1)
            [word] = o.load_words("global.nc", o.at(frequencies, o.times(number, 4)), 1)
            angle = o.mul(o.float_of(self.slots.position), o.as_float(word))
            turns = o.unary("cvt.rni.f32", o.mul(angle, o.real(1 / (2 * math.pi))))
            for part in TWO_PI:
                angle = o.fma(turns, o.real(-part), angle)
            sign = o.pick(o.less(o.thread, HEAD // 2), o.real(-1.0), o.real(1.0))
            address = o.plus(self.angles, o.times(o.thread, 4))
            o.store_shared(address, o.unary("cos.approx", angle))
            o.store_shared(o.plus(address, 4 * HEAD), o.mul(sign, o.unary("sin.approx", angle)))
        synchronize(o)

    def attend(self, layer: LayerAddresses, epoch: Value, place: Place) -> Place:
        """Publishes this block's values; returns the place after the cache's chunks."""
        o, group = self.o, self.sizes.group
        owns_new = o.equal(self.slots.part, PARTS - 1)
        inside = o.less(self.slots.position, self.slots.length)
        heads = o.pick(owns_new, group + 2, group)
        with o.when(o.less(o.warp, heads)):
            self._store_head(layer, epoch, inside)
        synchronize(o)
        nothing = [o.real(LOWEST)] + [o.real(0.0)] * (_STATE - 1)
        state = o.choose(
            o.both(o.both(owns_new, inside), o.equal(o.warp, WARPS - 1)),
            [o.f32] * (group * _STATE),
            self._with_new,
            lambda: nothing * group,
        )

        def body(number: Value, slot: Value, parity: Value, *state: Value) -> list[Value]:
            place, after = self._chunks(number, Place(slot, parity), state)
            return [*place.values(), *after]

        slot, parity, *state = o.loop(self.slots.count, [*place.values(), *state], body)
        self._store_sums(state)
        synchronize(o)
        self._publish_part(epoch)
        self._publish_attended(epoch)
        return Place(slot, parity)

    def _store_head(self, layer: LayerAddresses, epoch: Value, inside: Value) -> None:
        """A warp's head: a query, the new key or the new value; after norm and rotation.

        The new ones are also written into the cache. A lane has 4 elements.
        """
        o, group = self.o, self.sizes.group
        is_query, is_value = o.less(o.warp, group), o.equal(o.warp, group + 1)
        after_queries = o.plus(self.sizes.queries, o.times(self.slots.kv_head, HEAD))
        row = o.pick(
            is_query,
            o.times(o.plus(o.times(self.slots.kv_head, group), o.warp), HEAD),
            o.pick(is_value, o.plus(after_queries, KV_HEADS * HEAD), after_queries),
        )
        gain = o.pick(is_query, layer.query_gain, layer.key_gain)
        gains = o.halves(o.load_words("global.nc", o.at(gain, o.times(o.lane, 8)), 2))
        cos, sin = (
            [
                o.as_float(word)
                for word in o.load_words(
                    "shared", o.plus(self.angles, o.times(o.lane, 16)), 4, 4 * HEAD * number
                )
            ]
            for number in (0, 1)
        )
        address = o.at(self.heads, o.plus(o.times(row, PACKET // 2), o.times(o.lane, 16)))
        polled = poll(o, address, [0], epoch, short=True)
        head = [x for words in polled for x in packets.two_of(o, words)]
        scaled = [o.mul(x, gain) for x, gain in zip(head, gains, strict=True)]
        partner = [o.across(x, 16) for x in scaled]
        [squares] = o.sums_across([o.dot(head, head)], (16, 8, 4, 2, 1))
        inverse = o.inverse_root(o.fma(squares, o.real(1 / HEAD), o.real(self.sizes.eps)))
        turned = [
            o.mul(o.fma(x, c, o.mul(y, s)), inverse)
            for x, y, c, s in zip(scaled, partner, cos, sin, strict=True)
        ]
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
        lower = o.less(o.lane, _LANES)
        state = []
        for [score] in self._scores([key]):
            state += [o.pick(lower, score, o.real(LOWEST))]
            state += [o.pick(lower, x, o.real(0.0)) for x in (o.real(1.0), *value)]
        return state

    def _row(self, number: int) -> list[Value]:
        """This lane's elements of a query, or of the new key or value."""
        o = self.o
        own = o.plus(self.shared, o.times(o.bits(o.lane, _LANES - 1), 16))
        return o.halves(o.load_words("shared", own, _WORDS, _ROW * number))

    def _scores(self, keys: Sequence[list[Value]]) -> list[list[Value]]:
        """By query head, of each key. Queries are loaded each time: they fill many registers."""
        o = self.o
        scores = []
        for head in range(self.sizes.group):
            query = self._row(head)
            totals = o.sums_across([o.dot(query, key) for key in keys], (8, 4, 2, 1))
            scores.append([o.mul(total, o.real(SCALE)) for total in totals])
        return scores

    def _chunks(
        self, number: Value, place: Place, state: Sequence[Value]
    ) -> tuple[Place, list[Value]]:
        """The state after a chunk of keys and one of values: two slots of each half."""
        o, ring = self.o, self.ring
        own = o.plus(o.times(o.warp, CHUNK // WARPS), o.times(o.lane, 16))

        def rows(place: Place) -> list[list[Value]]:
            address = o.plus(ring.arrived(place), own)
            return [
                o.halves(o.load_words("shared", address, _WORDS, 2 * _ROW * row))
                for row in range(2)
            ]

        scores = self._scores(rows(place))
        ring.release(place, warps=WARPS)
        place = ring.after(place, 1)
        chunk = o.plus(self.slots.first, number)
        slot = o.plus(o.times(chunk, CHUNK_SLOTS), o.times(o.warp, 4), o.right(o.lane, 4))
        seen = [o.less(o.plus(slot, 2 * row), self.slots.used) for row in range(2)]
        values = rows(place)
        # Shuffles, which the compiler keeps, wait for the loads: only then is the chunk read.
        for row in values:
            o.across(row[0], 16)
        ring.release(place, warps=WARPS)
        place = ring.after(place, 1)
        result: list[Value] = []
        for head in range(self.sizes.group):
            top, total, *sums = state[_STATE * head : _STATE * (head + 1)]
            own_scores = [
                o.pick(s, score, o.real(LOWEST))
                for s, score in zip(seen, scores[head], strict=True)
            ]
            new_top = o.maximum(top, o.maximum(*own_scores))
            rescale = o.exp2(o.sub(top, new_top))
            # Where no slot was seen yet, the weight of one that is not would be 1.
            weights = [
                o.pick(s, o.exp2(o.sub(score, new_top)), o.real(0.0))
                for s, score in zip(seen, own_scores, strict=True)
            ]
            result += [new_top, o.add(o.fma(total, rescale, weights[0]), weights[1])]
            result += [
                o.fma(weights[1], b, o.fma(weights[0], a, o.mul(x, rescale)))
                for x, a, b in zip(sums, *values, strict=True)
            ]
        return place, result

    def _store_sums(self, state: Sequence[Value]) -> None:
        """Combines the warp's halves; stores maximum, total and weighted sums of each head."""
        o, group = self.o, self.sizes.group
        weights, sums = self._weights(), self._sums()
        own = o.plus(sums, o.times(o.warp, group * 4 * HEAD))
        own = o.plus(own, o.times(o.bits(o.lane, _LANES - 1), 4 * _OWN))
        lower = o.less(o.lane, _LANES)
        for head in range(group):
            top, *rest = state[_STATE * head : _STATE * (head + 1)]
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
            values = [
                o.as_float(o.load_words("shared", at_sums, 1, group * 4 * HEAD * warp)[0])
                for warp in range(WARPS)
            ]
            tops, totals = ([o.as_float(pair[i]) for pair in pairs] for i in (0, 1))
            top = o.tree(tops, o.maximum)
            scales = [o.exp2(o.sub(x, top)) for x in tops]
            total = o.tree([o.mul(a, b) for a, b in zip(scales, totals, strict=True)])
            value = o.tree([o.mul(a, b) for a, b in zip(scales, values, strict=True)])
            # Of a part without slots the total is 0: its weight is so small that it does not count.
            total = o.maximum(total, o.real(1e-30))
            weight = o.add(top, o.log2(total))
            words = packets.of_two(o, o.mul(value, o.inverse(total)), weight, epoch)
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
        polled = poll(
            o,
            o.at(first, o.times(o.thread, PACKET)),
            [PACKET * number for number in firsts],
            epoch,
            short=True,
            in_last=inside,
            at_once=1,
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
            lower = o.less(o.lane, _LANES)
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
