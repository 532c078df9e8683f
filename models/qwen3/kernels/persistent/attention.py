"""Attention of a block to its part of a key/value head's slots, by all computing warps.

A half of a warp reads one slot's key or value at once: its lane l has elements 8 l to 8 l + 7. Each
half keeps a running softmax of both query heads over its slots; the block combines them at the end.
The new token's key and value come from packets, and count in one half of one block only, which also
writes them into the cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.persistent import packets
from models.qwen3.kernels.persistent.lanes import Lanes
from models.qwen3.kernels.persistent.ring import Place, Ring
from models.qwen3.kernels.persistent.sizes import (
    CHUNK_SLOTS,
    COMPUTING_WARPS,
    GROUP,
    HEAD,
    PARTS,
    QUERY_PACKETS,
)

Value = Any
# Initial value of a running maximum; with -inf, the difference of two would be NaN.
LOWEST = -1e30
# Elements of a lane, lanes of a head, and words of a lane's elements in bfloat16.
OWN = 8
LANES = HEAD // OWN
_WORDS = OWN // 2
# Of a query head: maximum of the scores, sum of the weights, weighted sums of 8 elements.
_STATE = 2 + OWN
# Bytes in shared memory: the halves' sums, their maxima and weights, cosines and signed sines.
_HALVES = 2 * COMPUTING_WARPS
SUMS_BYTES = _HALVES * GROUP * HEAD * 4
_ANGLES = SUMS_BYTES + _HALVES * GROUP * 8
SHARED_BYTES = _ANGLES + 2 * HEAD * 4
# 2 pi as a sum of floats; multiples of the first two of up to 2^13 are exact.
TWO_PI = (6.28125, 0.0019350051879882812, 3.019916e-07)
_BARRIER = 10
# log2(e), for softmax by powers of two, and the scale of scores.
SCALE = math.log2(math.e) / math.sqrt(HEAD)


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
class Attention:
    """Attention of the computing warps.

    Attributes:
      shared: address of SHARED_BYTES.
      heads: address of the packets of queries, keys and values.
      parts: address of the packets with each part's result.
    """

    o: Lanes
    ring: Ring
    shared: Value
    heads: Value
    parts: Value
    slots: Slots
    eps: float

    def start(self, frequencies: Value) -> None:
        """Stores cosines and signed sines of the position's angles.

        Args:
          frequencies: address of HEAD / 2 float32.
        """
        o = self.o
        with o.when(o.less(o.thread, LANES)):
            address = o.plus(self.shared, _ANGLES, o.times(o.lane, OWN * 4))
            for number, values in enumerate(_rotation(o, frequencies, self.slots.position)):
                for i in (0, 4):
                    offset = HEAD * 4 * number + 4 * i
                    o.store_shared(o.plus(address, offset), *values[i : i + 4])
        o.named_barrier(_BARRIER, 32 * COMPUTING_WARPS)

    def _angles(self) -> list[list[Value]]:
        """Cosines and signed sines of this lane's elements."""
        o = self.o
        own = o.plus(self.shared, _ANGLES, o.times(o.bits(o.lane, LANES - 1), OWN * 4))
        words = [
            [w for i in (0, 16) for w in o.load_words("shared", own, 4, HEAD * 4 * number + i)]
            for number in (0, 1)
        ]
        return [[o.as_float(word) for word in row] for row in words]

    def attend(self, layer: LayerAddresses, epoch: Value, place: Place) -> Place:
        """Publishes this block's part of attention; returns the place after the cache's chunks."""
        o = self.o
        types = [o.i32] * (GROUP * _WORDS) + [o.f32] * (GROUP * _STATE)
        # The last part usually has the fewest slots.
        owns_new = o.both(o.equal(self.slots.part, PARTS - 1), o.equal(o.warp, COMPUTING_WARPS - 1))
        gain = o.halves(self._gain(layer.query_gain))
        started = o.choose(
            owns_new,
            types,
            lambda: self._start_with_new(layer, gain, epoch),
            lambda: self._start(gain, epoch),
        )
        words, state = started[: GROUP * _WORDS], started[GROUP * _WORDS :]
        queries = [o.halves(words[_WORDS * h : _WORDS * (h + 1)]) for h in range(GROUP)]

        def body(number: Value, slot: Value, parity: Value, *state: Value) -> list[Value]:
            place, state_after = self._chunk(number, Place(slot, parity), queries, state)
            return [place.slot, place.parity, *state_after]

        slot, parity, *state = o.loop(self.slots.count, [place.slot, place.parity, *state], body)
        self._store_halves(state)
        o.named_barrier(_BARRIER, 32 * COMPUTING_WARPS)
        self._publish(epoch)
        return Place(slot, parity)

    def _gain(self, address: Value) -> list[Value]:
        o = self.o
        lane = o.bits(o.lane, LANES - 1)
        return o.load_words("global.nc", o.at(address, o.times(lane, 2 * OWN)), _WORDS)

    def _start(self, gain: list[Value], epoch: Value) -> list[Value]:
        """Words of both queries, and the state before any slot."""
        o = self.o
        angles = self._angles()
        own = packets.poll(o, self._packet_addresses(0), epoch, short=True)
        [query] = self._normed_and_rotated([self._elements(own)], [gain], angles)
        nothing = [o.real(LOWEST)] + [o.real(0.0)] * (_STATE - 1)
        return [*self._of_both_halves(query), *nothing * GROUP]

    def _start_with_new(
        self, layer: LayerAddresses, gain: list[Value], epoch: Value
    ) -> list[Value]:
        """The same with the new token, which the lower half of the warp counts."""
        o = self.o
        key_gain, angles = o.halves(self._gain(layer.key_gain)), self._angles()
        addresses = [*self._packet_addresses(0), *self._packet_addresses(QUERY_PACKETS)]
        polled = packets.poll(o, addresses, epoch, short=True)
        of_queries, of_new = self._elements(polled[:_WORDS]), self._elements(polled[_WORDS:])
        query, key = self._normed_and_rotated([of_queries, of_new], [gain, key_gain], angles)
        value = [o.bf16_pair(*of_new[i : i + 2]) for i in range(0, OWN, 2)]
        # The lower half has the key, the upper one the value.
        lower = self._is_lower()
        own = [o.pick(lower, a, b) for a, b in zip(key, value, strict=True)]
        inside = o.less(self.slots.position, self.slots.length)
        self._write(layer, own, inside)
        new = self._of_both_halves(own)
        keys, values = o.halves(new[:_WORDS]), o.halves(new[_WORDS:])
        words = self._of_both_halves(query)
        scores = self._scores(
            [(o.halves(words[_WORDS * h : _WORDS * (h + 1)]), keys) for h in range(GROUP)]
        )
        counts = o.both(lower, inside)
        state = []
        for score in scores:
            state += [o.pick(counts, score, o.real(LOWEST))]
            state += [o.pick(counts, x, o.real(0.0)) for x in (o.real(1.0), *values)]
        return [*words, *state]

    def _packet_addresses(self, offset: int) -> list[Value]:
        o = self.o
        own = o.plus(o.times(self.slots.kv_head, 1024), o.times(o.lane, 16), offset)
        return [o.at(self.heads, o.plus(own, load)) for load in (0, 512)]

    def _elements(self, polled: Sequence[packets.Words]) -> list[Value]:
        return [x for words in polled for x in packets.two_of(self.o, words)]

    def _is_lower(self) -> Value:
        return self.o.less(self.o.lane, LANES)

    def _of_both_halves(self, words: Sequence[Value]) -> list[Value]:
        """The lower half's words, then the upper half's."""
        o, lower = self.o, self._is_lower()
        others = [o.across(word, LANES) for word in words]
        pairs = list(zip(words, others, strict=True))
        return [o.pick(lower, a, b) for a, b in pairs] + [o.pick(lower, b, a) for a, b in pairs]

    def _normed_and_rotated(
        self,
        heads: Sequence[list[Value]],
        gains: Sequence[list[Value]],
        angles: Sequence[list[Value]],
    ) -> list[list[Value]]:
        """Heads after RMSNorm and RoPE, as words of bfloat16."""
        o = self.o
        cos, sin = angles
        scaled = [
            [o.mul(x, gain) for x, gain in zip(head, own, strict=True)]
            for head, own in zip(heads, gains, strict=True)
        ]
        partners = [[o.across(x, LANES // 2) for x in head] for head in scaled]
        squares = self.o.sums_across([o.dot(head, head) for head in heads], (8, 4, 2, 1))
        results = []
        for head, partner, total in zip(scaled, partners, squares, strict=True):
            inverse = o.inverse_root(o.fma(total, o.real(1 / HEAD), o.real(self.eps)))
            turned = [
                o.mul(o.fma(x, c, o.mul(y, s)), inverse)
                for x, y, c, s in zip(head, partner, cos, sin, strict=True)
            ]
            results.append([o.bf16_pair(*turned[i : i + 2]) for i in range(0, OWN, 2)])
        return results

    def _write(self, layer: LayerAddresses, words: Sequence[Value], inside: Value) -> None:
        """Writes the new key and value at the position, if the cache has it."""
        o, slots = self.o, self.slots
        cache = o.pick(self._is_lower(), layer.keys, layer.values)
        row = o.plus(o.times(slots.kv_head, slots.length), slots.position)
        lane = o.bits(o.lane, LANES - 1)
        with o.when(inside):
            address = o.at(o.at_row(cache, row, 2 * HEAD), o.times(lane, 2 * OWN))
            o.ptx("st.global.v4.b32 [$0], {$1,$2,$3,$4};", address, *words)

    def _scores(self, pairs: Sequence[tuple[list[Value], list[Value]]]) -> list[Value]:
        o = self.o
        totals = o.sums_across([o.dot(a, b) for a, b in pairs], (8, 4, 2, 1))
        return [o.mul(total, o.real(SCALE)) for total in totals]

    def _chunk(
        self,
        number: Value,
        place: Place,
        queries: Sequence[list[Value]],
        state: Sequence[Value],
    ) -> tuple[Place, list[Value]]:
        """The state after a chunk of keys and one of values: two slots of each half."""
        o = self.o
        loaded = []
        for _ in ("keys", "values"):
            after = self.ring.arrived(place, 1)
            own = o.plus(o.times(o.warp, 1024), o.times(o.lane, 16))
            address = o.plus(self.ring.chunk(place.slot, o.integer(0)), own)
            loaded.append(
                [o.halves(o.load_words("shared", address, _WORDS, offset)) for offset in (0, 512)]
            )
            self.ring.release(place.slot, 1)
            place = after
        keys, values = loaded
        chunk = o.plus(self.slots.first, number)
        slot = o.plus(o.times(chunk, CHUNK_SLOTS), o.times(o.warp, 4), o.right(o.lane, 4))
        seen = [o.less(o.plus(slot, 2 * row), self.slots.used) for row in (0, 1)]
        scores = self._scores([(query, key) for query in queries for key in keys])
        result: list[Value] = []
        for head in range(GROUP):
            own_scores = [
                o.pick(s, score, o.real(LOWEST))
                for s, score in zip(seen, scores[2 * head : 2 * head + 2], strict=True)
            ]
            result += self._with(state[_STATE * head : _STATE * (head + 1)], own_scores, values)
        return place, result

    def _with(
        self, state: Sequence[Value], scores: Sequence[Value], values: Sequence[list[Value]]
    ) -> list[Value]:
        """A head's state after two slots."""
        o = self.o
        top, total, *sums = state
        new_top = o.maximum(top, o.maximum(*scores))
        rescale = o.exp2(o.sub(top, new_top))
        first, second = (o.exp2(o.sub(score, new_top)) for score in scores)
        total = o.add(o.fma(total, rescale, first), second)
        sums = [
            o.fma(second, b, o.fma(first, a, o.mul(x, rescale)))
            for x, a, b in zip(sums, *values, strict=True)
        ]
        return [new_top, total, *sums]

    def _store_halves(self, state: Sequence[Value]) -> None:
        o = self.o
        lane = o.bits(o.lane, LANES - 1)
        half = o.plus(o.times(o.warp, 2), o.right(o.lane, 4))
        own = o.plus(self.shared, o.times(half, GROUP * HEAD * 4), o.times(lane, OWN * 4))
        weights = o.plus(self.shared, SUMS_BYTES, o.times(half, GROUP * 8))
        for head in range(GROUP):
            top, total, *sums = state[_STATE * head : _STATE * (head + 1)]
            for i in (0, 4):
                address = o.plus(own, HEAD * 4 * head + 4 * i)
                o.store_shared(address, *sums[i : i + 4])
            o.store_shared(o.plus(weights, 8 * head), top, total, only=o.equal(lane, 0))

    def _publish(self, epoch: Value) -> None:
        """Combines the halves; a thread publishes an element, and the logarithm of its weight."""
        o = self.o
        thread = o.plus(o.times(o.warp, 32), o.lane)
        head, element = o.right(thread, 7), o.bits(thread, HEAD - 1)
        weights = o.plus(self.shared, SUMS_BYTES, o.times(head, 8))
        pairs = [o.load_words("shared", weights, 2, GROUP * 8 * half) for half in range(_HALVES)]
        own = o.plus(self.shared, o.times(head, HEAD * 4), o.times(element, 4))
        sums = [o.load_shared(o.plus(own, GROUP * HEAD * 4 * half)) for half in range(_HALVES)]
        tops, totals = ([o.as_float(pair[i]) for pair in pairs] for i in (0, 1))
        top, total, value = combined(o, tops, totals, sums)
        # Of a part without slots the total is 0, and its weight is so small that it does not count.
        total = o.maximum(total, o.real(1e-30))
        weight = o.add(top, o.log2(total))
        words = packets.of_two(o, o.mul(value, o.inverse(total)), weight, epoch)
        reader = o.plus(
            o.times(self.slots.kv_head, PARTS), o.times(head, PARTS // GROUP), o.right(element, 4)
        )
        address = part_address(o, self.parts, reader, self.slots.part, o.bits(element, LANES - 1))
        packets.store(o, address, words)


def part_address(o: Lanes, parts: Value, reader: Value, part: Value, value: Value) -> Value:
    """Of the packet with one of 16 values that block `reader` combines, from one part."""
    row = o.plus(o.times(reader, PARTS), part)
    return o.at(parts, o.plus(o.times(row, LANES * 8), o.times(value, 8)))


def combined(
    o: Lanes, tops: Sequence[Value], totals: Sequence[Value], sums: Sequence[Value]
) -> tuple[Value, Value, Value]:
    """Running softmaxes over different slots as one: maximum, total weight, weighted sum."""
    top = o.tree(tops, o.maximum)
    scales = [o.exp2(o.sub(x, top)) for x in tops]
    total = o.tree([o.mul(a, b) for a, b in zip(scales, totals, strict=True)])
    return top, total, o.tree([o.mul(a, b) for a, b in zip(scales, sums, strict=True)])


def _rotation(o: Lanes, frequencies: Value, position: Value) -> tuple[list[Value], list[Value]]:
    """Cosines and signed sines of this lane's elements of a head."""
    address = o.at(frequencies, o.times(o.bits(o.lane, LANES // 2 - 1), OWN * 4))
    words = [w for i in (0, 16) for w in o.load_words("global.nc", address, 4, i)]
    sign = o.pick(o.less(o.lane, LANES // 2), o.real(-1.0), o.real(1.0))
    cos, sin = [], []
    for word in words:
        angle = o.mul(o.float_of(position), o.as_float(word))
        turns = o.unary("cvt.rni.f32", o.mul(angle, o.real(1 / (2 * math.pi))))
        for part in TWO_PI:
            angle = o.fma(turns, o.real(-part), angle)
        cos.append(o.unary("cos.approx", angle))
        sin.append(o.mul(sign, o.unary("sin.approx", angle)))
    return cos, sin
