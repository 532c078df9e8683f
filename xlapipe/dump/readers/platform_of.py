"""The platform of a dump, which XLA's files do not name."""

from collections.abc import Iterable

from xlapipe.plans import BufferAllocation


def platform_of(allocations: Iterable[BufferAllocation]) -> str:
    """`tpu` if the layout of any value has tiles, as only XLA for TPUs writes them."""
    tiled = any(value.shape.is_tiled for item in allocations for value in item.values)
    return "tpu" if tiled else "cuda"
