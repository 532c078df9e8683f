"""The seconds of a collective over the links between the chips of a TPU slice.

A slice is a grid of chips; the ends of a dimension are connected where it is long enough. A
collective over several dimensions uses the links of all of them at once. Source of the formulas:
jax-ml.github.io/scaling-book, "sharded matrices".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from xlapipe.devices.platforms.tpu import CHIPS_PER_HOST
from xlapipe.devices.targets.chip_grid import ChipGrid
from xlapipe.devices.targets.device import Tpu
from xlapipe.plans.collectives import Collective
from xlapipe.time.collectives.exchange import DATASHEET
from xlapipe.time.predict.kernel_time import PUBLISHED, KernelTime, TimePart
from xlapipe.time.predict.scheduled import rates

_ALL_TO_ALL = frozenset({"all-to-all", "ragged-all-to-all"})
_REDUCES = frozenset({"all-reduce", "reduce-scatter"})
# Devices of a second slice are numbered from here on.
_SLICE = 100_000


@dataclass(frozen=True)
class Torus:
    """The chips of a slice."""

    device: Tpu
    grid: ChipGrid

    def time_of(self, collective: Collective) -> KernelTime | None:
        """The time of one execution; None if its bytes, its groups or the rate are unknown."""
        sent_bytes = collective.wire_bytes
        if sent_bytes is None and not collective.replica_groups:
            count = self.grid.device_count // self.grid.slices
            whole = collective.output_bytes if collective.kind == "all-gather" else None
            whole = whole or collective.operand_bytes
            twice = 2 if collective.kind == "all-reduce" else 1
            sent_bytes = None if whole is None else whole * twice * (count - 1) // count
        if sent_bytes is None:
            return None
        if collective.between_slices:
            rate = rates.SLICE_SHARE * self.device.slice_bandwidth
            if not rate:
                return None
            text = f"{sent_bytes / 1e6:,.2f} MB between slices at {rate / 1e9:.1f} GB/s"
            part = TimePart(sent_bytes / rate, text)
            basis = PUBLISHED if self.device.row == "v6e" else DATASHEET
            return KernelTime(part.seconds, (part,), 1.0, basis, 0.0)
        chips = list(self._chips(self._group(collective)))
        places = [sorted({chip[axis] for chip in chips}) for axis in range(len(self.grid.chips))]
        used = {axis: places[axis] for axis in range(len(places)) if len(places[axis]) > 1}
        if not used:  # between the devices of a chip
            return self._time(sent_bytes, 1, 0, rates.LINK_SHARE)
        links = sum(2 if self._wraps(axis) else 1 for axis in used)
        # Groups whose chips are not neighbours share the links between them.
        shared = prod((at[-1] - at[0]) / (len(at) - 1) for at in used.values())
        hops = sum(
            (len(at) // 2 if self._wraps(axis) else len(at) - 1) for axis, at in used.items()
        )
        share = rates.REDUCE_SHARE if collective.kind in _REDUCES else rates.LINK_SHARE
        if collective.kind == "collective-permute":
            links, shared = 1, 1.0
        if collective.kind in _ALL_TO_ALL:
            # Each byte travels a quarter of a ring on average, a third of a chain.
            loads = (len(at) / (8 if self._wraps(axis) else 3) for axis, at in used.items())
            return self._time(sent_bytes * max(loads) * shared, 1, hops, share)
        return self._time(sent_bytes * shared, links, hops, share)

    def _time(self, sent_bytes: float, links: int, hops: int, share: float) -> KernelTime:
        """The time to send a device's bytes; the devices of a chip share its links."""
        rate = share * links * (self.device.link_bandwidth or 1) / self.device.devices_per_chip
        text = f"{sent_bytes / 1e6:,.2f} MB over {links} links at {rate / 1e9:,.0f} GB/s"
        parts = (
            TimePart(sent_bytes / rate, text),
            TimePart(rates.EXCHANGE_SECONDS + hops * rates.HOP_SECONDS, "start of a collective"),
        )
        basis = PUBLISHED if self.device.row in ("tpu7x", "v6e") else DATASHEET
        return KernelTime(sum(part.seconds for part in parts), parts, 1.0, basis, 0.0)

    def _wraps(self, axis: int) -> bool:
        return self.grid.chips[axis] >= self.device.wraps_from

    def _group(self, collective: Collective) -> Sequence[int]:
        if collective.source_target_pairs:
            return max(collective.source_target_pairs, key=lambda pair: abs(pair[1] - pair[0]))
        groups = collective.replica_groups
        return groups[0] if groups else range(self.grid.device_count // self.grid.slices)

    def _chips(self, group: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Places of the chips of devices, which jax lists host by host."""
        chips = self.grid.chips
        per_host = tuple(min(a, b) for a, b in zip(CHIPS_PER_HOST, chips, strict=False))
        hosts = [chip // size for chip, size in zip(chips, per_host, strict=True)]
        order = [
            tuple(h * size + c for h, size, c in zip(host, per_host, chip, strict=True))
            for host in _in_order(hosts)
            for chip in _in_order(per_host)
        ]
        for number in group:
            yield order[number % _SLICE // self.grid.devices_per_chip % len(order)]


def _in_order(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Places of a grid, the first dimension fastest."""
    for place in product(*(range(size) for size in reversed(sizes))):
        yield place[::-1]
