"""Scratch bytes of CUB's radix sort, which XLA asks the device for.

On a device, XLA rewrites large sorts to CUB (`xla.gpu.ext.cub_sort_keys`, `…_pairs`), and CUB
returns the bytes of scratch for a size. They follow from CUB's tuning policy for a compute
capability: the number of items per tile by the bytes of a key and of a value. The tiles of 9.0
were fitted to 393 sorts compiled on an H200 and on an H100, which gave the same bytes. XLA embeds
a table of sizes that it recorded with an older CUB, in which these tiles are the same; it also has
sizes of an A100, a B200 and a GB200, from which the tiles of 8.0 and 10.0 are.
"""

from collections.abc import Mapping

_TILES_OF_9_0: Mapping[tuple[int, int], int] = {
    (1, 0): 9728,
    (1, 2): 7168,
    (1, 4): 7168,
    (1, 8): 3456,
    (2, 0): 9728,
    (2, 2): 7168,
    (2, 4): 6144,
    (2, 8): 5632,
    (4, 0): 7296,
    (4, 2): 6528,
    (4, 4): 6528,
    (4, 8): 5376,
    (8, 0): 5760,
    (8, 2): 5760,
    (8, 4): 5760,
    (8, 8): 4608,
}
# The bytes of a key and of a value that XLA gives to CUB; 0 for keys alone.
WIDTHS = tuple(_TILES_OF_9_0)
# Items per tile of the one-sweep sort by compute capability, and by bytes of a key and of a value.
# With 8.0, CUB sorts keys of 1 and 2 bytes by another algorithm, whose scratch depends on how many
# blocks of its kernels fit a core.
TILE_ITEMS: Mapping[str, Mapping[tuple[int, int], int]] = {
    "8.0": {
        (4, 0): 8064,
        (4, 2): 6528,
        (4, 4): 6528,
        (4, 8): 3072,
        (8, 0): 3840,
        (8, 2): 3840,
        (8, 4): 3840,
        (8, 8): 3840,
    },
    "9.0": _TILES_OF_9_0,
    "10.0": {
        **_TILES_OF_9_0,
        (1, 2): 5632,
        (1, 4): 5760,
        (2, 0): 7680,
        (2, 2): 8640,
        (2, 4): 9216,
    },
}
_ALIGNMENT_BYTES = 256
_DIGITS = 256  # one pass sorts by 8 bits
_OFFSET_BYTES, _COUNTER_BYTES = 8, 4
_MOST_ITEMS_PER_PORTION = 2**28 - 1
_SINGLE_TILE_THREADS, _SINGLE_TILE_ITEMS, _NOMINAL_BYTES = 256, 19, 4


def all_widths_known(capability: str) -> bool:
    """Whether the scratch of every sort is known for a compute capability, e.g. `9.0`."""
    return set(TILE_ITEMS.get(capability, ())) == set(WIDTHS)


def base_bytes(
    capability: str, key_bytes: int, value_bytes: int, items: int, *, segmented: bool
) -> int | None:
    """Scratch bytes that CUB itself asks for, without the offsets of the rows; None if unknown."""
    second_buffers = _aligned(items * key_bytes) + _aligned(items * value_bytes)
    if segmented:
        return second_buffers + _ALIGNMENT_BYTES - 1
    largest = max(_NOMINAL_BYTES, key_bytes, value_bytes)
    if items <= _SINGLE_TILE_THREADS * (_SINGLE_TILE_ITEMS * _NOMINAL_BYTES // largest):
        return 1  # one thread block sorts them
    tile = TILE_ITEMS[capability].get((key_bytes, value_bytes))
    if tile is None:
        return None
    portion = _MOST_ITEMS_PER_PORTION // tile * tile
    portions, passes = -(-items // portion), key_bytes
    histograms = portions * passes * _DIGITS * _OFFSET_BYTES
    lookback = -(-min(items, portion) // tile) * _DIGITS * _COUNTER_BYTES
    counters = portions * passes * _COUNTER_BYTES
    tables = _aligned(histograms) + _aligned(lookback) + _aligned(counters)
    return tables + (second_buffers if passes > 1 else 0) + _ALIGNMENT_BYTES - 1


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
