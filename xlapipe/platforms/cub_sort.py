"""Scratch bytes of CUB's radix sort, which XLA asks the device for.

On a device, XLA rewrites large sorts to CUB (`xla.gpu.ext.cub_sort_keys`, `…_pairs`), and CUB
returns the bytes of scratch for a size. They follow from CUB's tuning policy: the number of items
per tile by the bytes of a key and of a value. The tiles here are those of compute capability 9.0.
They were fitted to 393 sorts compiled on an H200 and on an H100, which gave the same bytes, and
agree with all 20,337 sizes that XLA itself records for an H100 in the table that it embeds.
"""

from collections.abc import Mapping

# Items per tile of the one-sweep sort, by bytes of a key and of a value; 0 for keys alone.
TILE_ITEMS: Mapping[tuple[int, int], int] = {
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
# The compute capabilities whose tiles these are.
KNOWN_CAPABILITIES = frozenset({"9.0"})
_ALIGNMENT_BYTES = 256
_DIGITS = 256  # one pass sorts by 8 bits
_OFFSET_BYTES, _COUNTER_BYTES = 8, 4
_MOST_ITEMS_PER_PORTION = 2**28 - 1
_SINGLE_TILE_THREADS, _SINGLE_TILE_ITEMS, _NOMINAL_BYTES = 256, 19, 4


def scratch_bytes(key_bytes: int, value_bytes: int, items: int, batch: int) -> int:
    """Scratch bytes of the custom call for `batch` rows of `items / batch` elements each.

    Args:
      value_bytes: 0 for a sort of keys alone.
      items: number of elements of all rows together.
    """
    if batch == 1:
        return base_bytes(key_bytes, value_bytes, items, segmented=False)
    base = base_bytes(key_bytes, value_bytes, items, segmented=True)
    # XLA appends the offsets of the rows, aligned.
    return base + (_COUNTER_BYTES - base % _COUNTER_BYTES) + _COUNTER_BYTES * (batch + 1)


def base_bytes(key_bytes: int, value_bytes: int, items: int, *, segmented: bool) -> int:
    """Scratch bytes that CUB itself asks for, without the offsets of the rows."""
    second_buffers = _aligned(items * key_bytes) + _aligned(items * value_bytes)
    if segmented:
        return second_buffers + _ALIGNMENT_BYTES - 1
    if items <= _single_tile_items(key_bytes, value_bytes):
        return 1
    tile = TILE_ITEMS[key_bytes, value_bytes]
    portion = _MOST_ITEMS_PER_PORTION // tile * tile
    portions, passes = -(-items // portion), key_bytes
    histograms = portions * passes * _DIGITS * _OFFSET_BYTES
    lookback = -(-min(items, portion) // tile) * _DIGITS * _COUNTER_BYTES
    counters = portions * passes * _COUNTER_BYTES
    tables = _aligned(histograms) + _aligned(lookback) + _aligned(counters)
    return tables + (second_buffers if passes > 1 else 0) + _ALIGNMENT_BYTES - 1


def _single_tile_items(key_bytes: int, value_bytes: int) -> int:
    """The most items that one thread block sorts, without scratch."""
    largest = max(_NOMINAL_BYTES, key_bytes, value_bytes)
    return _SINGLE_TILE_THREADS * (_SINGLE_TILE_ITEMS * _NOMINAL_BYTES // largest)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
