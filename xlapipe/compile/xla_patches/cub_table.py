"""Lets XLA decide on CUB's sorts without a device, as it does on one.

XLA rewrites sorts to CUB without a device too, if the table that is embedded in its library has
scratch sizes for the device and the version of CUB; jaxlib's table has none for its own CUB, and
building the call would ask CUB for the device. In the memory of the compiling child alone, this
module replaces the table by the sizes that `xlapipe.devices.platforms.cub_sort` computes, and makes
CUB's check of the device return at once. The library's file is not changed. An executable is
unchanged by this, and CUB checks the device where it is loaded. Everything is checked before
anything is written: where the library has another form, nothing is done, and XLA keeps its own
sorts.
"""

import math
import platform
import re
import struct
from collections.abc import Iterable, Iterator

from xlapipe.compile.wire_format import field, number, varint
from xlapipe.compile.xla_patches.loaded_library import (
    MemoryWrite,
    Symbol,
    base_address,
    find_symbols,
    plugin_library,
    read_memory,
    write_all,
)
from xlapipe.devices.platforms import cub_sort

_TABLE = b"cub_scratch_size_lookup_table_binarypb_zstdE\0"
_GUARD = b"_ZGVZN3xla3gpu30CubScratchSizeDevicelessLookup11GetInstanceEvE8instance\0"
# The checks of the device, and the functions by which XLA calls them.
_CHECKS = (b"22CubSortKeysInstantiateEN3xla3ffi", b"23CubSortPairsInstantiateEN3xla3ffi")
_CALLER = "__invokeEP17XLA_FFI_CallFrame"
_RETURN_NO_ERROR = b"\x31\xc0\xc3"  # xor eax, eax; ret
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_BLOCK_BYTES = 128 * 1024
_SORTS = re.compile(r"sort|top_?k", re.IGNORECASE)
_TENSOR = re.compile(r"tensor<((?:\d+x)+)[a-z]")
# The types of a sort follow its comparator.
_LINES_OF_A_SORT = 60
# A size that is not found in the program has a record at most this factor above it.
_GRID_STEP, _GRID_END = 1.1, 2**31
_UNKNOWN_FIELD = 1000


def may_sort(bytecode: bytes) -> bool:
    """Whether a module in MLIR's bytecode names an operation that sorts."""
    return _SORTS.search(bytecode.decode("latin-1")) is not None


def install(
    module: str, program: str, *, device: str, capability: str, cub_version: str, devices: int
) -> bool:
    """Replaces XLA's table of CUB's scratch sizes in this process, whose plugin is loaded.

    `module` is the Python module in whose folder it is. A sort on one of `devices` may be a part of
    the program's.
    """
    library = plugin_library(module) if platform.machine() == "x86_64" else None
    base = base_address(library) if library is not None else None
    if library is None or base is None:
        return False
    symbols = find_symbols(library, (_TABLE, _GUARD, *_CHECKS))
    if symbols is None:
        return False
    (table, _), (guard, _), *checks = symbols
    callers = [_caller(check, near, base) for check, near in checks]
    sizes = sorted({*_grid(), *_sort_sizes(program, devices)})
    # The array ends in a zero byte that is not part of the data.
    content = _frame(_table(device, capability, cub_version, sizes), table.size - 1)
    if content is None or read_memory(base + table.address, 4) != _ZSTD_MAGIC:
        return False
    changes = [MemoryWrite(base + table.address, content)]
    for caller in callers:
        if caller is None or caller.size < len(_RETURN_NO_ERROR):
            return False
        changes.append(MemoryWrite(base + caller.address, _RETURN_NO_ERROR))
    # XLA reads the table once per process; with a cleared guard, it reads it again.
    return write_all([*changes, MemoryWrite(base + guard.address, bytes(guard.size))])


def _caller(check: Symbol, near: Iterable[Symbol], base: int) -> Symbol | None:
    """The function of XLA's foreign function interface that calls `check`.

    None if there is not exactly one.
    """
    callers = [
        symbol
        for symbol in near
        if symbol.name.endswith(_CALLER) and check.address in _addresses_in(symbol, base)
    ]
    return callers[0] if len(callers) == 1 else None


def _addresses_in(function: Symbol, base: int) -> Iterator[int]:
    """Every address that an instruction of `function` could name relative to itself."""
    code = read_memory(base + function.address, function.size)
    for offset in range(len(code) - 3):
        (distance,) = struct.unpack_from("<i", code, offset)
        yield function.address + offset + 4 + distance


def _sort_sizes(program: str, devices: int) -> Iterator[int]:
    """Numbers of elements of the program's sorts, and of the parts that one device may hold."""
    lines = program.splitlines()
    positions = {
        position
        for start, line in enumerate(lines)
        if _SORTS.search(line)
        for position in range(start, min(start + _LINES_OF_A_SORT, len(lines)))
    }
    for position in positions:
        for dims in _TENSOR.findall(lines[position]):
            size = math.prod(map(int, dims.rstrip("x").split("x")))
            yield from (size // part for part in range(1, devices + 1) if size % part == 0)


def _grid() -> Iterator[int]:
    size = 1
    while size < _GRID_END:
        yield size
        size = max(size + 1, int(size * _GRID_STEP))


def _table(device: str, capability: str, cub_version: str, sizes: Iterable[int]) -> bytes:
    """XLA's CubScratchSizeLookupTable; widths without a known rule are left out."""
    sizes = tuple(sizes)
    return b"".join(
        field(
            1,
            field(1, cub_version.encode())
            + field(2, device.encode())
            + number(3, key_bytes)
            + number(4, value_bytes)
            + number(5, int(segmented))
            + b"".join(records),
        )
        for key_bytes, value_bytes in cub_sort.WIDTHS
        for segmented in (False, True)
        if (records := _records(capability, key_bytes, value_bytes, sizes, segmented=segmented))
    )


def _records(
    capability: str, key_bytes: int, value_bytes: int, sizes: Iterable[int], *, segmented: bool
) -> list[bytes]:
    """The records of one width, by increasing size; up to the first size without a known rule."""
    records = []
    for size in sizes:
        scratch = cub_sort.base_bytes(capability, key_bytes, value_bytes, size, segmented=segmented)
        if scratch is None:
            break
        records.append(field(6, number(1, size) + number(2, scratch)))
    return records


def _frame(content: bytes, size: int) -> bytes | None:
    """A zstd frame of exactly `size` bytes, of uncompressed blocks; None if it would be larger.

    The rest is filled with a field that XLA's table does not know.
    """
    header_bytes, blocks = 9, -(-size // _LARGEST_BLOCK_BYTES)
    tag = varint(_UNKNOWN_FIELD << 3 | 2)
    padding = size - header_bytes - 3 * blocks - len(content) - len(tag) - 3
    if padding < 0:
        return None
    # The length is written in three bytes, whatever it is.
    length = bytes([padding & 127 | 128, padding >> 7 & 127 | 128, padding >> 14])
    content += tag + length + bytes(padding)
    # Descriptor: a single segment, whose size is given in four bytes.
    frame = _ZSTD_MAGIC + b"\xa0" + struct.pack("<I", len(content))
    for start in range(0, len(content), _LARGEST_BLOCK_BYTES):
        block = content[start : start + _LARGEST_BLOCK_BYTES]
        last = start + _LARGEST_BLOCK_BYTES >= len(content)
        frame += struct.pack("<I", len(block) << 3 | last)[:3] + block
    return frame if len(frame) == size else None
