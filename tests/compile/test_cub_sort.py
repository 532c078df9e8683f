"""Scratch sizes of CUB's sorts and the memory limit, against what two GPUs gave XLA."""

import ctypes
import json
import mmap
import struct
from pathlib import Path
from typing import Any

import pytest

from xlapipe.compile.xla_patches import cub_table
from xlapipe.compile.xla_patches.loaded_library import MemoryWrite, Symbol, _permissions, write_all
from xlapipe.devices.platforms import NVIDIA
from xlapipe.devices.platforms.cub_sort import (
    TILE_ITEMS,
    WIDTHS,
    all_widths_known,
    base_bytes,
)

GPU = Path(__file__).parents[1] / "gpu"
RECORD: Any = json.loads((GPU / "cub_scratch.json").read_text(encoding="utf-8"))
XLAS_TABLE: Any = json.loads((GPU / "cub_scratch_of_xla.json").read_text(encoding="utf-8"))


def scratch_bytes(capability: str, key: int, value: int, items: int, batch: int) -> int | None:
    """Of the custom call for rows: XLA appends their offsets, aligned to 4 bytes."""
    base = base_bytes(capability, key, value, items, segmented=batch > 1)
    return base if batch == 1 or base is None else base + (4 - base % 4) + 4 * (batch + 1)


def test_scratch_bytes_are_those_of_the_devices() -> None:
    differing = [row for row in RECORD["rows"] if scratch_bytes("9.0", *row[:4]) != row[4]]
    assert differing == []
    assert {(key, value) for key, value, *_ in RECORD["rows"]} == set(WIDTHS)


@pytest.mark.parametrize("capability", TILE_ITEMS)
def test_scratch_bytes_are_those_that_xla_recorded(capability: str) -> None:
    rows = [row for row in XLAS_TABLE["rows"] if row[0] == capability]
    known = {
        tuple(row): base_bytes(capability, *row[1:3], row[4], segmented=bool(row[3]))
        for row in rows
    }
    assert [row for row, scratch in known.items() if scratch not in (row[-1], None)] == []
    unknown = {row[1:3] for row, scratch in known.items() if scratch is None}
    assert unknown == set(WIDTHS) - set(TILE_ITEMS[capability])
    assert all_widths_known(capability) is not bool(unknown)


def test_rules_of_other_capabilities_are_not_known() -> None:
    assert not all_widths_known("8.9")
    assert not all_widths_known("8.0")
    assert scratch_bytes("8.0", 2, 4, 100_000, 1) is None
    assert scratch_bytes("8.0", 2, 4, 100_000, 10) == scratch_bytes("9.0", 2, 4, 100_000, 10)


@pytest.mark.parametrize(
    ("key", "value", "items", "batch", "expected"),
    [
        # From XLA's own table for an H100: one tile, the first size above it, and several portions.
        (4, 0, 4860, 1, 1),
        (4, 0, 4957, 1, 29_695),
        (8, 0, 2304, 1, 1),
        (8, 0, 2350, 1, 36_863),
    ],
)
def test_scratch_bytes_at_the_limits(
    key: int, value: int, items: int, batch: int, expected: int
) -> None:
    assert scratch_bytes("9.0", key, value, items, batch) == expected


@pytest.mark.parametrize("device", RECORD["devices"])
def test_memory_limit_is_that_of_the_devices_allocator(device: str) -> None:
    assert NVIDIA.memory_limit is not None
    memory = RECORD["device_memory_bytes"][device]
    assert NVIDIA.memory_limit(memory, 0.75) == RECORD["allocator_limit_bytes"][device]


def test_sizes_are_those_of_the_sorts_and_of_their_parts() -> None:
    program = """
    %0 = "stablehlo.add"(%a, %b) : (tensor<7x11xf32>, tensor<7x11xf32>) -> tensor<7x11xf32>
    %1 = "stablehlo.sort"(%arg0) <{dimension = 1}> ({
      "stablehlo.return"(%2) : (tensor<i1>) -> ()
    }) : (tensor<64x3000xf32>) -> tensor<64x3000xf32>"""
    assert set(cub_table._sort_sizes(program, 2)) == {64 * 3000, 32 * 3000}


def test_table_in_a_frame_of_a_given_size() -> None:
    content = cub_table._table("GPU", "9.0", "3.2.0", [1000, 200_000])
    size = 200_000
    frame = cub_table._frame(content, size)
    assert frame is not None
    assert len(frame) == size
    magic, descriptor, length = struct.unpack_from("<IBI", frame)
    assert (magic, descriptor) == (0xFD2FB528, 0xA0)
    blocks, position, last = b"", 9, False
    while not last:
        header = int.from_bytes(frame[position : position + 3], "little")
        last, kind, bytes_ = bool(header & 1), header >> 1 & 3, header >> 3
        assert kind == 0, "uncompressed"
        blocks += frame[position + 3 : position + 3 + bytes_]
        position += 3 + bytes_
    assert position == size
    assert len(blocks) == length
    assert blocks.startswith(content)
    assert cub_table._frame(content, len(content)) is None, "too small"


def test_table_has_each_width_in_both_forms() -> None:
    entry = b"\n\x053.2.0\x12\x03GPU"
    sizes = [1000, 200_000]
    assert cub_table._table("GPU", "9.0", "3.2.0", sizes).count(entry) == 2 * len(WIDTHS)
    assert base_bytes("9.0", 4, 4, 1000, segmented=True) == 2 * 4096 + 255


def test_table_leaves_out_sizes_without_a_rule() -> None:
    """The table for 8.0 has narrow keys that need one tile, and none above."""
    narrow, wide = (
        cub_table._records("8.0", key, 0, [1000, 200_000], segmented=False) for key in (2, 4)
    )
    assert (len(narrow), len(wide)) == (1, 2)


def test_nothing_is_changed_without_the_plugin() -> None:
    given = {"device": "GPU", "capability": "9.0", "cub_version": "3.2.0", "devices": 1}
    assert not cub_table.install("no_such_module", '"stablehlo.sort"', **given)
    assert not cub_table.install("json", '"stablehlo.sort"', **given)


def test_all_changes_of_memory_are_made_or_none() -> None:
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert not write_all([MemoryWrite(address, b"one"), MemoryWrite(0, b"no page is here")])
    assert memory[:3] == bytes(3)
    assert write_all(
        [MemoryWrite(address, b"one"), MemoryWrite(address + mmap.PAGESIZE - 1, b"two")]
    )
    assert (memory[:3], memory[mmap.PAGESIZE - 1 : mmap.PAGESIZE + 2]) == (b"one", b"two")


def test_memory_without_permission_to_write_gets_its_permissions_back() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(address, mmap.PAGESIZE, mmap.PROT_READ) == 0
    assert write_all([MemoryWrite(address, b"one")])
    assert memory[:3] == b"one"
    assert _permissions(address, mmap.PAGESIZE) == mmap.PROT_READ


@pytest.mark.parametrize("missing", [0, 1])
def test_a_library_with_one_unknown_check_is_unchanged(
    missing: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other check is not changed either."""
    # A mapping of its own, as a library has: that of malloc's memory is as other threads leave it.
    memory = mmap.mmap(-1, 3_000_000)
    memory[:4] = b"\x28\xb5\x2f\xfd"
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    table, guard = Symbol("table", 0, 2_000_000), Symbol("guard", 2_000_008, 8)
    checks = [Symbol("keys", 2_100_000, 64), Symbol("pairs", 2_200_000, 64)]
    monkeypatch.setattr(cub_table, "plugin_library", lambda _: tmp_path)
    monkeypatch.setattr(cub_table, "base_address", lambda _: base)
    monkeypatch.setattr(
        cub_table, "find_symbols", lambda *_: [(it, ()) for it in (table, guard, *checks)]
    )
    given = {"device": "GPU", "capability": "9.0", "cub_version": "3.2.0", "devices": 1}
    known: list[Symbol | None] = [*checks]
    known[missing] = None
    monkeypatch.setattr(cub_table, "_caller", lambda check, *_: known[checks.index(check)])
    before = memory[:]
    assert not cub_table.install("plugin", '"stablehlo.sort"', **given)
    assert memory[:] == before
    known[:] = checks
    assert cub_table.install("plugin", '"stablehlo.sort"', **given)
    assert memory[2_100_000:2_100_003] == memory[2_200_000:2_200_003] == b"\x31\xc0\xc3"
