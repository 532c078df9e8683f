"""Symbols and memory of a shared library (64-bit ELF) that this process has loaded."""

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_PLUGIN = "xla_cuda_plugin.so"
_ELF_OF_64_BITS = b"\x7fELF\x02"
_SYMBOL_TABLE_SECTION, _FILE_SYMBOL = 2, 4
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_FIELDS = [
    ("name", "<u4"),
    ("info", "u1"),
    ("other", "u1"),
    ("section", "<u2"),
    ("address", "<u8"),
    ("size", "<u8"),
]


@dataclass(frozen=True)
class Symbol:
    """A symbol of a library, with its address in it before it is loaded."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class MemoryWrite:
    """Bytes to write at an address of this process."""

    address: int
    content: bytes


def plugin_library(module: str) -> Path | None:
    """XLA's plugin in the folder of a Python module; None if it is not there."""
    spec = find_spec(module)
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return next((path for folder in folders if (path := Path(folder, _PLUGIN)).is_file()), None)


def find_symbols(
    library: Path, parts: Sequence[bytes]
) -> tuple[tuple[Symbol, tuple[Symbol, ...]], ...] | None:
    """For each part, the one symbol whose name holds it, and the symbols of its source file."""
    import numpy as np

    with library.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    with content:
        if content[: len(_ELF_OF_64_BITS)] != _ELF_OF_64_BITS:
            return None
        (sections_at,) = struct.unpack_from("<Q", content, 40)
        entry_bytes, count = struct.unpack_from("<HH", content, 58)
        sections = [
            _SECTION.unpack_from(content, sections_at + number * entry_bytes)
            for number in range(count)
        ]
        table = next((it for it in sections if it[1] == _SYMBOL_TABLE_SECTION), None)
        if table is None:
            return None
        names_at, names_bytes = sections[table[6]][4:6]
        symbols = np.frombuffer(
            content[table[4] : table[4] + table[5]], dtype=np.dtype(_SYMBOL_FIELDS)
        )

        def symbol(row: int) -> Symbol:
            start = names_at + int(symbols["name"][row])
            name = content[start : content.find(b"\0", start)].decode()
            return Symbol(name, int(symbols["address"][row]), int(symbols["size"][row]))

        matches = []
        for part in parts:
            at = content.find(part, names_at, names_at + names_bytes)
            start = content.rfind(b"\0", names_at, at) + 1 - names_at
            rows = np.flatnonzero(symbols["name"] == start)
            if at < 0 or len(rows) != 1:
                return None
            files = np.flatnonzero(symbols["info"] & 15 == _FILE_SYMBOL)
            before, after = files[files < rows[0]], files[files > rows[0]]
            first = int(before[-1]) if len(before) else 0
            last = int(after[0]) if len(after) else len(symbols)
            matches.append((symbol(int(rows[0])), tuple(map(symbol, range(first + 1, last)))))
    return tuple(matches)


def base_address(library: Path) -> int | None:
    """The address at which the library is loaded; None if it is not."""
    path = str(library.resolve())
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == path and int(fields[2], 16) == 0:
            return int(fields[0].partition("-")[0], 16)
    return None


def read_memory(address: int, size: int) -> bytes:
    """The bytes at an address of this process."""
    return ctypes.string_at(address, size)


def write_all(changes: Sequence[MemoryWrite]) -> bool:
    """Writes into memory of libraries, which may be mapped without permission to write.

    All pages are made writable before the first byte is written, and get their permissions back.
    They become this process's own; neither the file nor another process sees the change.
    """
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = [_pages(change) for change in changes]
    permissions = [_permissions(*span) for span in pages]
    known = [it for it in permissions if it is not None]
    if len(known) != len(changes):
        return False
    opened: list[tuple[int, int, int]] = []
    try:
        for (start, length), permission in zip(pages, known, strict=True):
            opened.append((start, length, permission))
            if protect(start, length, permission | mmap.PROT_WRITE) != 0:
                return False
        for change in changes:
            ctypes.memmove(change.address, change.content, len(change.content))
    finally:
        for span in opened:
            protect(*span)
    return True


def _pages(change: MemoryWrite) -> tuple[int, int]:
    """Address and bytes of the pages that a change is in."""
    start = change.address // mmap.PAGESIZE * mmap.PAGESIZE
    end = change.address + len(change.content)
    return start, -(-(end - start) // mmap.PAGESIZE) * mmap.PAGESIZE


def _permissions(start: int, length: int) -> int | None:
    """The permissions of mapped memory, as of mprotect; None if it is not in one mapping."""
    flags = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC, "-": 0}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, letters, *_ = line.split(maxsplit=2)
        first, _, end = span.partition("-")
        if int(first, 16) <= start and start + length <= int(end, 16):
            return sum(flags[letter] for letter in letters[:3])
    return None
