"""Which reads the L2 cache can serve: values that were read or written a short time ago.

A bound, not a simulation: the cache is assumed to hold the most recently touched bytes, up to its
whole size, whatever its associativity.
"""

from collections.abc import Hashable
from typing import NamedTuple

from xlapipe.time.cost.touched import Touched


class Mark(NamedTuple):
    """A state of the cache to return to."""

    changes: int
    touches: int
    oldest: int
    total_bytes: int


class Residency:
    """The most recently touched bytes, by memory."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        # Bytes of each memory, and when it was last touched: a position in `_touches`.
        self._resident: dict[Hashable, tuple[int, int]] = {}
        self._touches: list[Hashable] = []
        # No memory at an earlier position is resident.
        self._oldest = 0
        self._total = 0
        # What each change replaced, so that branches need no copy of the whole cache.
        self._replaced: list[tuple[Hashable, tuple[int, int] | None]] = []

    def mark(self) -> Mark:
        """The current state."""
        self._skip_stale()
        return Mark(len(self._replaced), len(self._touches), self._oldest, self._total)

    def restore(self, mark: Mark) -> None:
        for memory, before in reversed(self._replaced[mark.changes :]):
            if before is None:
                del self._resident[memory]
            else:
                self._resident[memory] = before
        del self._replaced[mark.changes :]
        del self._touches[mark.touches :]
        self._oldest, self._total = mark.oldest, mark.total_bytes

    def launch(self, touched: Touched) -> int:
        """Record what a kernel touches; return the bytes of its reads that may hit the cache.

        A read of a part is served only if the whole is in the cache: which part was touched before
        is unknown, e.g. a slice at another offset in each trip of a loop.
        """
        cached = 0
        for read in touched.reads:
            resident, _ = self._resident.get(read.memory, (0, 0))
            if read.size_bytes == read.whole_bytes:
                cached += min(resident, read.size_bytes)
            elif resident and resident >= min(read.whole_bytes, self._capacity):
                cached += read.size_bytes
        for item in (*touched.reads, *touched.writes):
            before = self._resident.get(item.memory)
            if item.size_bytes == item.whole_bytes:
                self._put(item.memory, min(item.whole_bytes, self._capacity), before)
            elif before is not None:
                self._put(item.memory, before[0], before)
        return cached

    def _put(self, memory: Hashable, size_bytes: int, before: tuple[int, int] | None) -> None:
        self._replaced.append((memory, before))
        self._resident[memory] = (size_bytes, len(self._touches))
        self._touches.append(memory)
        self._total += size_bytes - (before[0] if before is not None else 0)
        while self._total > self._capacity:
            self._shrink_oldest(self._total - self._capacity)

    def _shrink_oldest(self, excess: int) -> None:
        """Evict the bytes in excess of the cache's size, at most the whole of the oldest memory."""
        self._skip_stale()
        memory = self._touches[self._oldest]
        entry = self._resident[memory]
        self._replaced.append((memory, entry))
        if entry[0] > excess:
            self._resident[memory] = (entry[0] - excess, entry[1])
        else:
            del self._resident[memory]
        self._total -= min(entry[0], excess)

    def _skip_stale(self) -> None:
        """Advance to the oldest memory that is resident and was not touched again later."""
        while self._oldest < len(self._touches):
            entry = self._resident.get(self._touches[self._oldest])
            if entry is not None and entry[1] == self._oldest:
                break
            self._oldest += 1
