"""Weights and cache on their way into shared memory, through a ring of chunks.

One thread fetches, in the order in which the computing warps take. It stops only where the ring is
full, so that memory is read while a block waits for the others. Chunks are contiguous in memory:
each is one bulk copy.
"""

from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.persistent.lanes import Lanes
from models.qwen3.kernels.persistent.sizes import CHUNK, COMPUTING_WARPS

Value = Any
# Bytes of an mbarrier.
BARRIER = 8


@dataclass(frozen=True)
class Place:
    """A slot of the ring, and the parity of its round."""

    slot: Value
    parity: Value


@dataclass(frozen=True)
class Ring:
    """The ring's shared memory.

    Attributes:
      address: of the first slot.
      barriers: address of `full` of each slot, then of `empty` of each slot.
      slots: number of slots.
      window: the maximum number of copies on their way. If it is large, packets wait for weights.
    """

    o: Lanes
    address: Value
    barriers: Value
    slots: int
    window: int

    def initialize(self) -> None:
        o = self.o
        for slot in range(self.slots):
            full, empty = self._full(o.integer(slot)), self._empty(o.integer(slot))
            o.ptx("mbarrier.init.shared::cta.b64 [$0], 1;", full)
            o.ptx(f"mbarrier.init.shared::cta.b64 [$0], {COMPUTING_WARPS};", empty)
        o.ptx("fence.mbarrier_init.release.cluster;")
        o.ptx("fence.proxy.async;")

    def start(self) -> Place:
        return Place(self.o.integer(0), self.o.integer(0))

    def after(self, place: Place) -> Place:
        o = self.o
        following = o.plus(place.slot, 1)
        wraps = o.equal(following, self.slots)
        return Place(
            o.pick(wraps, 0, following), o.pick(wraps, o.flip(place.parity, 1), place.parity)
        )

    def chunk(self, first: Value, number: Value) -> Value:
        """Address of the chunk that is `number` slots, fewer than all, after slot `first`."""
        return self.o.plus(self.address, self.o.times(self._wrapped(first, number), CHUNK))

    def fetch(self, place: Place, source: Value, policy: Value) -> Place:
        """Copies a chunk as soon as its slot is empty; of one thread."""
        o = self.o
        back = o.less(place.slot, self.window)
        earlier = o.pick(
            back,
            o.plus(place.slot, self.slots - self.window),
            o.minus(place.slot, self.window),
        )
        last_round = o.flip(place.parity, 1)
        o.wait(self._full(earlier), o.pick(back, last_round, place.parity), one_thread=True)
        o.wait(self._empty(place.slot), last_round, one_thread=True)
        full = self._full(place.slot)
        o.ptx(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {CHUNK};", full)
        o.ptx(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            f"[$0], [$1], {CHUNK}, [$2], $3;",
            self.chunk(place.slot, o.integer(0)),
            source,
            full,
            policy,
        )
        return self.after(place)

    def arrived(self, place: Place, count: int) -> Place:
        """Waits for the next `count` chunks, at most all; returns the place after them.

        A lane waits for one chunk: a warp's code for many waits would be long.
        """
        o = self.o
        own = self._advanced(place, o.least(o.lane, count - 1))
        o.wait(self._full(own.slot), own.parity)
        o.synchronize_warp()
        return self._advanced(place, o.integer(count))

    def _advanced(self, place: Place, count: Value) -> Place:
        """The place `count` slots, at most all, after `place`."""
        o = self.o
        slot = o.plus(place.slot, count)
        stays = o.less(slot, self.slots)
        return Place(
            o.pick(stays, slot, o.minus(slot, self.slots)),
            o.pick(stays, place.parity, o.flip(place.parity, 1)),
        )

    def release(self, first: Value, count: int) -> None:
        """This warp has read the `count` chunks from slot `first` on."""
        o = self.o
        o.synchronize_warp()
        empty = self._empty(self._wrapped(first, o.bits(o.lane, 15)))
        only = o.less(o.lane, count)
        o.ptx("mbarrier.arrive.shared::cta.b64 _, [$0];", empty, only=only)

    def _wrapped(self, first: Value, number: Value) -> Value:
        slot = self.o.plus(first, number)
        return self.o.pick(self.o.less(slot, self.slots), slot, self.o.minus(slot, self.slots))

    def _full(self, slot: Value) -> Value:
        return self.o.plus(self.barriers, self.o.times(slot, BARRIER))

    def _empty(self, slot: Value) -> Value:
        return self.o.plus(self._full(slot), BARRIER * self.slots)
