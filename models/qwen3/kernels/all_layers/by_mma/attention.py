"""Attention whose queries and running softmaxes are in registers of each half of a warp.

Each half norms and rotates the queries itself. The new token's key and value come from packets.
"""

from collections.abc import Sequence
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.attention import (
    LANES,
    OWN,
    STATE,
    WORDS,
    Attention,
)
from models.qwen3.kernels.all_layers.block import LayerAddresses
from models.qwen3.kernels.all_layers.by_mma.layout import QUERY_PACKETS
from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.ring import Place
from models.qwen3.kernels.all_layers.sizes import HEAD, PARTS, WARPS

Value = Any
# Query heads of a key/value head.
GROUP = 2
# Bytes in shared memory: the halves' sums, their maxima and totals, cosines and signed sines.
_HALVES = 2 * WARPS
SUMS_BYTES = _HALVES * GROUP * HEAD * 4
_ANGLES = SUMS_BYTES + _HALVES * GROUP * 8
SHARED_BYTES = _ANGLES + 2 * HEAD * 4
# Bits of a lane in its half of a warp, which has a head.
_DISTANCES = (8, 4, 2, 1)


class AttentionInRegisters(Attention):
    """Attention of the computing warps, which have SHARED_BYTES."""

    def start(self, frequencies: Value) -> None:
        """Stores cosines and signed sines of the position's angles.

        Args:
          frequencies: address of HEAD / 2 float32.
        """
        o = self.o
        with o.when(o.less(o.thread, LANES)):
            target = o.plus(self.shared, _ANGLES, o.times(o.lane, OWN * 4))
            source = o.at(frequencies, o.times(o.bits(o.lane, LANES // 2 - 1), OWN * 4))
            words = [word for i in (0, 16) for word in o.load_words("global.nc", source, 4, i)]
            sign = o.pick(o.less(o.lane, LANES // 2), o.real(-1.0), o.real(1.0))
            angles = (self.angle(word) for word in words)
            pairs = [(o.cos(angle), o.mul(sign, o.sin(angle))) for angle in angles]
            for number, values in enumerate(zip(*pairs, strict=True)):
                for i in (0, 4):
                    offset = HEAD * 4 * number + 4 * i
                    o.store_shared(o.plus(target, offset), *values[i : i + 4])
        o.synchronize()

    def attend(self, layer: LayerAddresses, epoch: Value, place: Place) -> Place:
        """Publishes this block's part of attention; returns the place after the cache's chunks."""
        o = self.o
        types = [o.i32] * (GROUP * WORDS) + [o.f32] * (GROUP * STATE)
        # The last part usually has the fewest slots.
        owns_new = o.both(o.equal(self.slots.part, PARTS - 1), o.equal(o.warp, WARPS - 1))
        gain = o.halves(self._gain(layer.query_gain))
        started = o.choose(
            owns_new,
            types,
            lambda: self._start_with_new(layer, gain, epoch),
            lambda: self._start(gain, epoch),
        )
        words, state = started[: GROUP * WORDS], started[GROUP * WORDS :]
        queries = self._of_heads(words)

        def chunk(number: Value, place: Place, state: Sequence[Value]) -> Any:
            return self._chunk(number, place, queries, state)

        place, state = self.over_chunks(place, state, chunk)
        self._store_halves(state)
        o.synchronize()
        self._publish(epoch)
        return place

    def _gain(self, address: Value) -> list[Value]:
        o = self.o
        lane = o.bits(o.lane, LANES - 1)
        return o.load_words("global.nc", o.at(address, o.times(lane, 2 * OWN)), WORDS)

    def _angles(self) -> list[list[Value]]:
        """Cosines and signed sines of this lane's elements."""
        o = self.o
        own = o.plus(self.shared, _ANGLES, o.times(o.bits(o.lane, LANES - 1), OWN * 4))
        return self.load_angles(own, OWN)

    def _start(self, gain: list[Value], epoch: Value) -> list[Value]:
        """Words of both queries, and the state before any slot."""
        o = self.o
        angles = self._angles()
        own = packets.poll(o, self._packet_addresses(0), epoch, short=True)
        [query] = self._turned([self._elements(own)], [gain], angles)
        nothing = self.nothing()
        return [*self._of_both_halves(query), *nothing * GROUP]

    def _start_with_new(
        self, layer: LayerAddresses, gain: list[Value], epoch: Value
    ) -> list[Value]:
        """The same with the new token, which the lower half of the warp counts."""
        o = self.o
        key_gain, angles = o.halves(self._gain(layer.key_gain)), self._angles()
        addresses = [*self._packet_addresses(0), *self._packet_addresses(QUERY_PACKETS)]
        polled = packets.poll(o, addresses, epoch, short=True)
        of_queries, of_new = self._elements(polled[:WORDS]), self._elements(polled[WORDS:])
        query, key = self._turned([of_queries, of_new], [gain, key_gain], angles)
        value = _words(o, of_new)
        # The lower half has the key, the upper one the value.
        lower = self._is_lower()
        own = [o.pick(lower, a, b) for a, b in zip(key, value, strict=True)]
        inside = o.less(self.slots.position, self.slots.length)
        self._write(layer, own, inside)
        new = self._of_both_halves(own)
        keys, values = o.halves(new[:WORDS]), o.halves(new[WORDS:])
        words = self._of_both_halves(query)
        scores = self.scores([(query, keys) for query in self._of_heads(words)])
        return [*words, *self.of_new(scores, values, o.both(lower, inside))]

    def _packet_addresses(self, offset: int) -> list[Value]:
        o = self.o
        own = o.plus(o.times(self.slots.kv_head, 1024), o.times(o.lane, 16), offset)
        return [o.at(self.heads, o.plus(own, load)) for load in (0, 512)]

    def _elements(self, polled: Sequence[packets.Words]) -> list[Value]:
        return [x for words in polled for x in packets.two_of(self.o, words)]

    def _is_lower(self) -> Value:
        return self.o.less(self.o.lane, LANES)

    def _of_heads(self, words: Sequence[Value]) -> list[list[Value]]:
        """This lane's elements of each query head."""
        return [self.o.halves(words[WORDS * head : WORDS * (head + 1)]) for head in range(GROUP)]

    def _of_both_halves(self, words: Sequence[Value]) -> list[Value]:
        """The lower half's words, then the upper half's."""
        o, lower = self.o, self._is_lower()
        others = [o.across(word, LANES) for word in words]
        pairs = list(zip(words, others, strict=True))
        return [o.pick(lower, a, b) for a, b in pairs] + [o.pick(lower, b, a) for a, b in pairs]

    def _turned(self, heads: Any, gains: Any, angles: Any) -> list[list[Value]]:
        """Heads after RMSNorm and RoPE, as words of bfloat16."""
        turned = self.normed_and_rotated(heads, gains, angles, _DISTANCES)
        return [_words(self.o, head) for head in turned]

    def _write(self, layer: LayerAddresses, words: Sequence[Value], inside: Value) -> None:
        """Writes the new key and value at the position, if the cache has it."""
        o, slots = self.o, self.slots
        cache = o.pick(self._is_lower(), layer.keys, layer.values)
        row = o.plus(o.times(slots.kv_head, slots.length), slots.position)
        lane = o.bits(o.lane, LANES - 1)
        with o.when(inside):
            address = o.at(o.at_row(cache, row, 2 * HEAD), o.times(lane, 2 * OWN))
            o.ptx("st.global.v4.b32 [$0], {$1,$2,$3,$4};", address, *words)

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
            after = self.ring.wait_for(place, 1)
            own = o.plus(o.times(o.warp, 1024), o.times(o.lane, 16))
            address = o.plus(self.ring.chunk_after(place.slot, o.integer(0)), own)
            loaded.append(
                [o.halves(o.load_words("shared", address, WORDS, offset)) for offset in (0, 512)]
            )
            self.ring.release(place.slot, 1)
            place = after
        keys, values = loaded
        seen = self.seen(number)
        scores = self.scores([(query, key) for query in queries for key in keys])
        by_head = [scores[2 * head : 2 * head + 2] for head in range(GROUP)]
        return place, self.with_slots(state, seen, by_head, values, masked=False)

    def _store_halves(self, state: Sequence[Value]) -> None:
        o = self.o
        lane = o.bits(o.lane, LANES - 1)
        half = o.plus(o.times(o.warp, 2), o.right(o.lane, 4))
        own = o.plus(self.shared, o.times(half, GROUP * HEAD * 4), o.times(lane, OWN * 4))
        weights = o.plus(self.shared, SUMS_BYTES, o.times(half, GROUP * 8))
        for head in range(GROUP):
            top, total, *sums = state[STATE * head : STATE * (head + 1)]
            for i in (0, 4):
                address = o.plus(own, HEAD * 4 * head + 4 * i)
                o.store_shared(address, *sums[i : i + 4])
            o.store_shared(o.plus(weights, 8 * head), top, total, only=o.equal(lane, 0))

    def _publish(self, epoch: Value) -> None:
        """Combines the halves; a thread publishes an element."""
        o = self.o
        thread = o.plus(o.times(o.warp, 32), o.lane)
        head, element = o.right(thread, 7), o.bits(thread, HEAD - 1)
        weights = o.plus(self.shared, SUMS_BYTES, o.times(head, 8))
        pairs = [o.load_words("shared", weights, 2, GROUP * 8 * half) for half in range(_HALVES)]
        own = o.plus(self.shared, o.times(head, HEAD * 4), o.times(element, 4))
        sums = [o.load_shared(o.plus(own, GROUP * HEAD * 4 * half)) for half in range(_HALVES)]
        words = self.part_packet(pairs, sums, epoch)
        reader = o.plus(
            o.times(self.slots.kv_head, PARTS), o.times(head, PARTS // GROUP), o.right(element, 4)
        )
        address = part_address(o, self.parts, reader, self.slots.part, o.bits(element, LANES - 1))
        packets.store(o, address, words)


def _words(o: Lanes, elements: Sequence[Value]) -> list[Value]:
    """A lane's elements in bfloat16."""
    return [o.bf16_pair(*elements[i : i + 2]) for i in range(0, OWN, 2)]


def part_address(o: Lanes, parts: Value, reader: Value, part: Value, value: Value) -> Value:
    """Address of the packet with one of 16 values that block `reader` combines."""
    row = o.plus(o.times(reader, PARTS), part)
    return o.at(parts, o.plus(o.times(row, LANES * 8), o.times(value, 8)))
