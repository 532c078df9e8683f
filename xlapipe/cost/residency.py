"""Which reads the L2 cache can serve: values that were read or written a short time ago.

A bound, not a simulation: the cache is assumed to hold the most recently touched bytes, up to its
whole size, whatever its associativity.
"""

from collections import OrderedDict
from collections.abc import Hashable

from xlapipe.cost.touched import Touched


class Residency:
    """The most recently touched bytes, by memory."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._resident: OrderedDict[Hashable, int] = OrderedDict()
        self._total = 0

    def copy(self) -> "Residency":
        """An independent copy, for one branch of a conditional."""
        other = Residency(self._capacity)
        other._resident, other._total = self._resident.copy(), self._total
        return other

    def launch(self, touched: Touched) -> int:
        """Records what a kernel touches; returns the bytes of its reads that may be in the cache.

        A read of a part is served only if the whole is in the cache: which part was touched before
        is unknown, e.g. a slice at another offset in each trip of a loop.
        """
        cached = 0
        for read in touched.reads:
            resident = self._resident.get(read.memory, 0)
            if read.size_bytes == read.whole_bytes:
                cached += min(resident, read.size_bytes)
            elif resident and resident >= min(read.whole_bytes, self._capacity):
                cached += read.size_bytes
        for item in (*touched.reads, *touched.writes):
            if item.size_bytes == item.whole_bytes:
                self._put(item.memory, item.whole_bytes)
            elif item.memory in self._resident:
                self._resident.move_to_end(item.memory)
        return cached

    def _put(self, memory: Hashable, size_bytes: int) -> None:
        self._total -= self._resident.pop(memory, 0)
        self._resident[memory] = min(size_bytes, self._capacity)
        self._total += self._resident[memory]
        while self._total > self._capacity:
            oldest, resident = next(iter(self._resident.items()))
            excess = self._total - self._capacity
            if resident > excess:
                self._resident[oldest] = resident - excess
                self._total = self._capacity
            else:
                del self._resident[oldest]
                self._total -= resident
