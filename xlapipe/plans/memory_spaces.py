"""Memory spaces: the memory of an allocation, from XLA's color.

XLA numbers memory spaces per platform and prints the number as `color N` of an allocation and as
`S(N)` in a layout. 5 is pinned host memory on every platform so far.
"""

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


def space_of(color: int, platform: Platform) -> MemorySpace:
    """The memory space of an allocation with this color."""
    return MemorySpace(platform.memory_spaces.get(color, platform.default_memory_space))


def is_on_chip(space: MemorySpace) -> bool:
    """Whether a memory is part of the chip itself, rather than HBM or the host's memory."""
    return space not in (MemorySpace.HBM, MemorySpace.HOST)
