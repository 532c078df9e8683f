"""What the attentions of both forms of a block share: a running softmax over its slots.

A half of a warp reads one slot's key or value at once: its lane l has elements 8 l to 8 l + 7. Each
half keeps a running softmax of all query heads over its slots; the block combines them at the end.
The new token counts in one half of one block only, which also writes it into the cache.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.qwen3.kernels.all_layers import packets
from models.qwen3.kernels.all_layers.block import Block
from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.ring import Place
from models.qwen3.kernels.all_layers.sizes import CHUNK_SLOTS, HEAD

Value = Any
# Initial value of a running maximum; with -inf, the difference of two would be NaN.
LOWEST = -1e30
# Elements of a lane, lanes of a head, and words of a lane's elements in bfloat16.
OWN = 8
LANES = HEAD // OWN
WORDS = OWN // 2
# Words of a query head: maximum score, sum of the weights, weighted sums of 8 elements.
STATE = 2 + OWN
# 2 pi as a sum of floats; multiples of the first two of up to 2^13 are exact.
TWO_PI = (6.28125, 0.0019350051879882812, 3.019916e-07)
# log2(e), for softmax by powers of two, and the scale of scores.
SCALE = math.log2(math.e) / math.sqrt(HEAD)


class Attention:
    """Attention of the computing warps.

    Attributes:
      shared: address of shared memory, of which the form decides what is where.
    """

    def __init__(self, block: Block, shared: Value) -> None:
        self.o, self.sizes, self.ring, self.slots = block.o, block.sizes, block.ring, block.slots
        self.heads, self.parts, self.shared = block.heads, block.parts, shared

    def angle(self, frequency: Value) -> Value:
        """The position's angle less whole turns; `frequency` is a word."""
        o = self.o
        angle = o.mul(o.float_of(self.slots.position), o.as_float(frequency))
        turns = o.unary("cvt.rni.f32", o.mul(angle, o.real(1 / (2 * math.pi))))
        for part in TWO_PI:
            angle = o.fma(turns, o.real(-part), angle)
        return angle

    def nothing(self) -> list[Value]:
        """A head's state before any slot."""
        o = self.o
        return [o.real(LOWEST)] + [o.real(0.0)] * (STATE - 1)

    def normed_and_rotated(
        self,
        heads: Sequence[Sequence[Value]],
        gains: Sequence[Sequence[Value]],
        angles: Sequence[Sequence[Value]],
        distances: Sequence[int],
    ) -> Iterator[list[Value]]:
        """Heads after RMSNorm and RoPE.

        Args:
          heads: this lane's elements of each.
          angles: cosines and signed sines of these elements.
          distances: bits of the lane in its head. The first one is that of the head's other half.
        """
        o = self.o
        cos, sin = angles
        scaled = [
            [o.mul(x, gain) for x, gain in zip(head, own, strict=True)]
            for head, own in zip(heads, gains, strict=True)
        ]
        partners = [[o.across(x, distances[0]) for x in head] for head in scaled]
        squares = o.sums_across([o.dot(head, head) for head in heads], distances)
        for head, partner, total in zip(scaled, partners, squares, strict=True):
            inverse = o.inverse_rms(total, HEAD, self.sizes.config.rms_norm_eps)
            yield [
                o.mul(o.fma(x, c, o.mul(y, s)), inverse)
                for x, y, c, s in zip(head, partner, cos, sin, strict=True)
            ]

    def scores(self, pairs: Sequence[tuple[list[Value], list[Value]]]) -> list[Value]:
        """The score of each pair of a query and a key."""
        o = self.o
        totals = o.sums_across([o.dot(a, b) for a, b in pairs], (8, 4, 2, 1))
        return [o.mul(total, o.real(SCALE)) for total in totals]

    def over_chunks(
        self,
        place: Place,
        state: Sequence[Value],
        chunk: Callable[[Value, Place, Sequence[Value]], tuple[Place, list[Value]]],
    ) -> tuple[Place, list[Value]]:
        """The place and all heads' states after the block's chunks.

        Args:
          chunk: the same after a chunk with this number.
        """

        def body(number: Value, slot: Value, parity: Value, *state: Value) -> list[Value]:
            place, after = chunk(number, Place(slot, parity), state)
            return [*place.values(), *after]

        slot, parity, *state = self.o.loop(self.slots.count, [*place.values(), *state], body)
        return Place(slot, parity), state

    def seen(self, number: Value) -> list[Value]:
        """Whether this lane's two slots of a chunk are used."""
        o = self.o
        chunk = o.plus(self.slots.first, number)
        slot = o.plus(o.times(chunk, CHUNK_SLOTS), o.times(o.warp, 4), o.right(o.lane, 4))
        return [o.less(o.plus(slot, 2 * row), self.slots.used) for row in (0, 1)]

    def with_slots(
        self,
        state: Sequence[Value],
        seen: Sequence[Value],
        scores: Sequence[Sequence[Value]],
        values: Sequence[list[Value]],
        *,
        masked: bool,
    ) -> list[Value]:
        """All heads' states after two slots.

        Args:
          scores: of both slots, by head.
          masked: slots that are not seen have weight 0 even where none was seen yet. Otherwise it
            is 1 there, until a seen slot, or the combination with one, rescales it to 0.
        """
        o, result = self.o, []
        for head, own_scores in enumerate(scores):
            top, total, *sums = state[STATE * head : STATE * (head + 1)]
            pairs = [
                (s, o.pick(s, x, o.real(LOWEST))) for s, x in zip(seen, own_scores, strict=True)
            ]
            new_top = o.maximum(top, o.maximum(*(score for _, score in pairs)))
            rescale = o.exp2(o.sub(top, new_top))
            weights = []
            for s, score in pairs:
                weight = o.exp2(o.sub(score, new_top))
                weights.append(o.pick(s, weight, o.real(0.0)) if masked else weight)
            first, second = weights
            result += [new_top, o.add(o.fma(total, rescale, first), second)]
            result += [
                o.fma(second, b, o.fma(first, a, o.mul(x, rescale)))
                for x, a, b in zip(sums, *values, strict=True)
            ]
        return result

    def of_new(self, scores: Sequence[Value], value: Sequence[Value], counts: Value) -> list[Value]:
        """All heads' states with the new token alone, where it counts."""
        o = self.o
        state = []
        for score in scores:
            state += [o.pick(counts, score, o.real(LOWEST))]
            state += [o.pick(counts, x, o.real(0.0)) for x in (o.real(1.0), *value)]
        return state

    def load_angles(self, address: Value, elements: int) -> list[list[Value]]:
        """Cosines and signed sines of a lane's elements of a head, from shared memory."""
        o = self.o
        words = [
            [
                word
                for first in range(0, 4 * elements, 16)
                for word in o.load_words("shared", address, 4, HEAD * 4 * number + first)
            ]
            for number in (0, 1)
        ]
        return [[o.as_float(word) for word in row] for row in words]

    def part_packet(
        self, weights: Sequence[Sequence[Value]], sums: Sequence[Value], epoch: Value
    ) -> packets.Words:
        """The packet of an element of the block's part of attention, and its weight's logarithm.

        Args:
          weights: words of the maximum and total of each state.
          sums: weighted sums of each state.
        """
        o = self.o
        tops, totals = ([o.as_float(pair[i]) for pair in weights] for i in (0, 1))
        top, total, value = combined(o, tops, totals, sums)
        # A part without slots has the total 0, and a weight so small that it does not count.
        total = o.maximum(total, o.real(1e-30))
        weight = o.add(top, o.log2(total))
        return packets.of_two(o, o.mul(value, o.inverse(total)), weight, epoch)


def combined(
    o: Lanes, tops: Sequence[Value], totals: Sequence[Value], sums: Sequence[Value]
) -> tuple[Value, Value, Value]:
    """Running softmaxes over different slots as one: maximum, total weight, weighted sum."""
    top = o.tree(tops, o.maximum)
    scales = [o.exp2(o.sub(x, top)) for x in tops]
    total = o.tree([o.mul(a, b) for a, b in zip(scales, totals, strict=True)])
    return top, total, o.tree([o.mul(a, b) for a, b in zip(scales, sums, strict=True)])
