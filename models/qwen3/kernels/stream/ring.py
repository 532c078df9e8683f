"""Weights and cache on their way into shared memory, through a ring of chunks.

Four warps fetch a row each, in the order in which the computing warps take. They stop only where
the ring is full, so that memory is read while a block waits for the others.
"""

from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.persistent.lanes import Lanes
from models.qwen3.kernels.stream.sizes import BARRIER, CHUNK, COLUMNS, FETCHING_WARPS, WARPS

Value = Any


@dataclass(frozen=True)
class Place:
    """A slot of the ring, and the parity of its round."""

    slot: Value
    parity: Value

    def values(self) -> list[Value]:
        return [self.slot, self.parity]


@dataclass(frozen=True)
class Ring:
    """The ring's shared memory.

    Attributes:
      address: of the first slot.
      barriers: address of `full` of each slot, then of `empty` of each slot.
      slots: number of slots.
      window: the maximum number of chunks on their way. If it is large, packets wait for weights.
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
            o.ptx(f"mbarrier.init.shared::cta.b64 [$0], {FETCHING_WARPS};", full)
            o.ptx(f"mbarrier.init.shared::cta.b64 [$0], {WARPS};", empty)
        o.ptx("fence.mbarrier_init.release.cluster;")
        o.ptx("fence.proxy.async;")

    def start(self) -> Place:
        return Place(self.o.integer(0), self.o.integer(0))

    def after(self, place: Place, count: Value) -> Place:
        """The place `count` chunks later; a `count` that is not constant is less than `slots`."""
        o, rounds = self.o, 0
        if isinstance(count, int):
            rounds, count = divmod(count, self.slots)
        slot = o.plus(place.slot, count)
        stays = o.less(slot, self.slots)
        parity = o.flip(place.parity, rounds % 2)
        return Place(
            o.pick(stays, slot, o.minus(slot, self.slots)),
            o.pick(stays, parity, o.flip(parity, 1)),
        )

    def chunk(self, place: Place) -> Value:
        return self.o.plus(self.address, self.o.times(place.slot, CHUNK))

    def fetch(self, place: Place, source: Value, policy: Value, row_bytes: Value) -> Place:
        """Copies this fetching warp's row of a chunk as soon as the slot is empty.

        Args:
          source: address of the row, contiguous in memory.
        """
        o = self.o
        last_round = o.flip(place.parity, 1)
        if self.window < self.slots:
            back = o.less(place.slot, self.window)
            earlier = o.pick(
                back,
                o.plus(place.slot, self.slots - self.window),
                o.minus(place.slot, self.window),
            )
            o.wait(self._full(earlier), o.pick(back, last_round, place.parity))
        o.wait(self._empty(place.slot), last_round)
        full = self._full(place.slot)
        row = o.times(o.minus(o.warp, WARPS), 2 * COLUMNS)
        with o.when(o.equal(o.lane, 0)):
            o.ptx(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;",
                full,
                o.integer(row_bytes),
            )
            o.ptx(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                "[$0], [$1], $2, [$3], $4;",
                o.plus(self.chunk(place), row),
                source,
                o.integer(row_bytes),
                full,
                policy,
            )
        return self.after(place, 1)

    def arrived(self, place: Place) -> Value:
        """Waits for a chunk; returns its address.

        Parities tell a round from the next one only. So the slot must first be empty after the
        round before: other warps take chunks of that round, which may arrive later than own ones.
        """
        o = self.o
        o.wait(self._empty(place.slot), o.flip(place.parity, 1))
        o.wait(self._full(place.slot), place.parity)
        return self.chunk(place)

    def release(self, place: Place, *, warps: int) -> None:
        """`warps` warps, this one among them, have read a chunk; each of the others also says it.

        WARPS of them in total make the slot empty: a warp that was alone says it for all.
        """
        o = self.o
        o.synchronize_warp()
        o.ptx(
            f"mbarrier.arrive.shared::cta.b64 _, [$0], {WARPS // warps};",
            self._empty(place.slot),
            only=o.equal(o.lane, 0),
        )

    def _full(self, slot: Value) -> Value:
        return self.o.plus(self.barriers, self.o.times(slot, BARRIER))

    def _empty(self, slot: Value) -> Value:
        return self.o.plus(self._full(slot), BARRIER * self.slots)
