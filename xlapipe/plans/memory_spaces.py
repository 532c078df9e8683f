"""Memory spaces: the memory of an allocation, from XLA's color, and the bytes in each.

XLA numbers memory spaces per platform and prints the number as `color N` of an allocation and as
`S(N)` in a layout. 5 is pinned host memory on every platform so far.
"""

from dataclasses import dataclass
from enum import StrEnum

from xlapipe.devices.platforms import Platform

HOST_COLOR = 5


class MemorySpace(StrEnum):
    """A kind of memory, as `show --json` names it under `spaces`."""

    HBM = "hbm"
    HOST = "host"
    VMEM = "vmem"
    SMEM = "smem"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SpaceTotals:
    """Bytes of a plan in one memory space, by kind of allocation.

    `live_out_bytes` includes aliased parameters; `total_bytes` includes constants and, in the
    device's memory, thread-local allocations.
    """

    parameter_bytes: int
    live_out_bytes: int
    aliased_bytes: int
    temp_bytes: int
    total_bytes: int


def space_of(color: int, platform: Platform) -> MemorySpace:
    """The memory space of an allocation with this color."""
    return MemorySpace(platform.memory_spaces.get(color, platform.default_memory_space))


def is_on_chip(space: MemorySpace) -> bool:
    """Whether a memory is part of the chip itself, rather than HBM or the host's memory."""
    return space not in (MemorySpace.HBM, MemorySpace.HOST)
