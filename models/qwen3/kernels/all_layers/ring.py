"""Weights and cache on their way into shared memory, through a ring of chunks.

Some warps fetch, in the order in which the computing warps take. They stop only where the ring is
full, so that memory is read while a block waits for the others. A chunk is one bulk copy, or one of
each fetching warp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.qwen3.kernels.all_layers.lanes import Lanes
from models.qwen3.kernels.all_layers.sizes import BARRIER, CHUNK, COLUMNS, WARPS

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
      window: the maximum number of chunks on their way, at most all. If it is large, packets wait
        for weights.
      rows: copies of a chunk, each by another warp.
    """

    o: Lanes
    address: Value
    barriers: Value
    slots: int
    window: int
    rows: int

    def initialize(self) -> None:
        o = self.o
        for slot in range(self.slots):
            full, empty = self._full(o.integer(slot)), self._empty(o.integer(slot))
            o.ptx(f"mbarrier.init.shared::cta.b64 [$0], {self.rows};", full)
            o.ptx(f"mbarrier.init.shared::cta.b64 [$0], {WARPS};", empty)
        o.ptx("fence.mbarrier_init.release.cluster;")
        o.ptx("fence.proxy.async;")

    def start(self) -> Place:
        return Place(self.o.integer(0), self.o.integer(0))

    def after(self, place: Place, count: Value) -> Place:
        """The place `count` chunks later; a `count` that is not constant is at most `slots`."""
        o, parity = self.o, place.parity
        if isinstance(count, int) and count >= self.slots:
            rounds, count = divmod(count, self.slots)
            parity = o.flip(parity, rounds % 2)
        slot = o.plus(place.slot, count)
        stays = o.less(slot, self.slots)
        return Place(
            o.pick(stays, slot, o.minus(slot, self.slots)),
            o.pick(stays, parity, o.flip(parity, 1)),
        )

    def loop(self, count: Value, place: Place, run: Callable[[Value, Place], Place]) -> Place:
        """The place after `place = run(number, place)` for each number below `count`."""

        def body(number: Value, slot: Value, parity: Value) -> list[Value]:
            return run(number, Place(slot, parity)).values()

        return Place(*self.o.loop(count, place.values(), body))

    def chunk(self, slot: Value) -> Value:
        """Address of a slot's chunk."""
        return self.o.plus(self.address, self.o.times(slot, CHUNK))

    def chunk_after(self, first: Value, number: Value) -> Value:
        """Address of the chunk that is `number` slots, fewer than all, after slot `first`."""
        return self.chunk(self._wrapped(first, number))

    # Methods of the fetching warps.

    def fetch(self, place: Place, source: Value, policy: Value) -> Place:
        """Copies a chunk as soon as its slot is empty; of one thread.

        Args:
          source: address of the chunk, contiguous in memory.
        """
        o = self.o
        self._until_empty(place, *self._earlier(place), o.flip(place.parity, 1), one_thread=True)
        full = self._expect(place, CHUNK)
        target = self.chunk_after(place.slot, o.integer(0))
        o.copy_to_shared(target, source, CHUNK, full, policy)
        following = o.plus(place.slot, 1)
        wraps = o.equal(following, self.slots)
        return Place(
            o.pick(wraps, 0, following), o.pick(wraps, o.flip(place.parity, 1), place.parity)
        )

    def fetch_row(self, place: Place, source: Value, policy: Value, row_bytes: Value) -> Place:
        """Copies this fetching warp's row of a chunk as soon as the slot is empty.

        Args:
          source: address of the row, contiguous in memory.
        """
        o = self.o
        # Before the rest, unlike in `fetch`: PTX keeps the order, and is that which was timed.
        last_round = o.flip(place.parity, 1)
        self._until_empty(place, *self._earlier(place), last_round, one_thread=False)
        row = o.times(o.minus(o.warp, WARPS), 2 * COLUMNS)
        with o.when(o.equal(o.lane, 0)):
            full = self._expect(place, row_bytes)
            target = o.plus(self.chunk(place.slot), row)
            o.copy_to_shared(target, source, row_bytes, full, policy)
        return self.after(place, 1)

    def _earlier(self, place: Place) -> tuple[Value, Value]:
        """The slot `window` chunks before, and whether it is in the round before."""
        o = self.o
        back = o.less(place.slot, self.window)
        earlier = o.pick(
            back,
            o.plus(place.slot, self.slots - self.window),
            o.minus(place.slot, self.window),
        )
        return earlier, back

    def _until_empty(
        self, place: Place, earlier: Value, back: Value, last_round: Value, *, one_thread: bool
    ) -> None:
        """Waits until the earlier slot's chunk has arrived, and this slot is empty.

        Args:
          last_round: the parity of the round before.
        """
        o = self.o
        full = self._full(earlier)
        o.wait(full, o.pick(back, last_round, place.parity), one_thread=one_thread)
        o.wait(self._empty(place.slot), last_round, one_thread=one_thread)

    def _expect(self, place: Place, size: Value) -> Value:
        """Announces the bytes of a copy; returns the address of the slot's `full`."""
        full = self._full(place.slot)
        text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {size};"
        self.o.with_size(text, size, full)
        return full

    # Methods of the computing warps.

    def wait_for(self, place: Place, count: int) -> Place:
        """Waits for the next `count` chunks, at most all; returns the place after them.

        A lane waits for one chunk: a warp's code for many waits would be long.
        """
        o = self.o
        own = self.after(place, o.least(o.lane, count - 1))
        o.wait(self._full(own.slot), own.parity)
        o.synchronize_warp()
        return self.after(place, o.integer(count))

    def release(self, first: Value, count: int) -> None:
        """This warp has read the `count` chunks from slot `first` on."""
        o = self.o
        o.synchronize_warp()
        empty = self._empty(self._wrapped(first, o.bits(o.lane, 15)))
        only = o.less(o.lane, count)
        o.ptx("mbarrier.arrive.shared::cta.b64 _, [$0];", empty, only=only)

    def wait_for_one(self, place: Place) -> Value:
        """Waits for a chunk, of which other warps may take other ones; returns its address.

        Parities tell a round from the next one only. So the slot must first be empty after the
        round before: other warps take chunks of that round, which may arrive later than own ones.
        """
        o = self.o
        o.wait(self._empty(place.slot), o.flip(place.parity, 1))
        o.wait(self._full(place.slot), place.parity)
        return self.chunk(place.slot)

    def release_one(self, place: Place, *, warps: int) -> None:
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

    def _wrapped(self, first: Value, number: Value) -> Value:
        slot = self.o.plus(first, number)
        return self.o.pick(self.o.less(slot, self.slots), slot, self.o.minus(slot, self.slots))

    def _full(self, slot: Value) -> Value:
        return self.o.plus(self.barriers, self.o.times(slot, BARRIER))

    def _empty(self, slot: Value) -> Value:
        return self.o.plus(self._full(slot), BARRIER * self.slots)
