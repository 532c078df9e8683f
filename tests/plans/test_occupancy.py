"""Bytes in use at each position: counted once, and never more than allocated."""

from pathlib import Path

import pytest

from tests.shared.dumps import DIRECTORIES, SEED_003, name_of, needs_seed_003
from tests.shared.hlo_objects import logical_buffer
from xlapipe.dump.readers import read_path
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    LiveRange,
    LiveRanges,
    Plan,
)
from xlapipe.plans.occupancy import Occupancy, Role

TEMP, LIVE = AllocationKind.PREALLOCATED_TEMP, AllocationKind.MAYBE_LIVE_OUT
PARAMETER = AllocationKind.PARAMETER
ARENA = BufferAllocation(
    1,
    100,
    (TEMP,),
    values=(
        logical_buffer("a", 0, 40, "u8[40]{0}"),
        logical_buffer("b", 0, 40, "u8[40]{0}"),  # reuses a's bytes from position 2 on
        logical_buffer("c", 60, 30, "u8[30]{0}"),
        logical_buffer("none", 95, 0, "u8[0]{0}"),
    ),
)
PLAN = Plan(
    (
        BufferAllocation(
            0,
            8,
            (PARAMETER, LIVE),
            parameter_number=0,
            values=(logical_buffer("p", 0, 8, "u8[8]{0}"), logical_buffer("new", 0, 8, "u8[8]{0}")),
        ),
        ARENA,
        BufferAllocation(
            2,
            16,
            (LIVE,),
            values=(logical_buffer("out", 0, 16, "u8[16]{0}"), logical_buffer("s", 0, 4, "f32[]")),
        ),
        BufferAllocation(
            3,
            4,
            (AllocationKind.CONSTANT,),
            values=(logical_buffer("const", 0, 4, "f32[]"),),
        ),
        BufferAllocation(
            4,
            4,
            (AllocationKind.THREAD_LOCAL,),
            values=(logical_buffer("register", 0, 4, "f32[]"),),
        ),
    ),
    live_ranges=LiveRanges(
        ("p", "a", "b", "s", "out", "new"),
        (
            LiveRange("p", 0, 5),
            LiveRange("a", 1, 2),
            LiveRange("b", 2, 3),
            LiveRange("c", 2, 2),
            LiveRange("none", 0, 6),
            LiveRange("s", 3, 3),
            LiveRange("out", 4, 6),
            LiveRange("new", 5, 6),
        ),
        2,
        None,
    ),
)


def test_bytes_that_two_values_share_are_counted_once() -> None:
    occupancy = Occupancy(PLAN)
    # The argument (8 bytes) and the constant (4) are in use at every position.
    assert occupancy.occupied_bytes == (12, 52, 82, 56, 28, 28, 28)
    assert (occupancy.peak_position, occupancy.peak_bytes) == (2, 82)
    counted = {value.value.name: value.counted_bytes for value in occupancy.contents(2)}
    assert counted == {"a": 40, "b": 0, "c": 30, "p": 8, "const": 4, "none": 0}
    assert occupancy.fullest(ARENA) == (2, 70)


def test_roles() -> None:
    occupancy = Occupancy(PLAN)
    roles = {
        value.name: occupancy.role(allocation, value)
        for allocation in PLAN.allocations
        for value in allocation.values
    }
    assert roles["p"] is roles["new"] is Role.ALIAS
    assert roles["out"] is Role.OUTPUT
    assert roles["s"] is Role.TEMP  # it only reuses the output's memory
    assert roles["a"] is Role.TEMP
    assert roles["const"] is Role.CONSTANT
    assert roles["register"] is Role.THREAD_LOCAL


def test_without_live_ranges_every_value_counts() -> None:
    occupancy = Occupancy(Plan(PLAN.allocations))
    assert occupancy.occupied_bytes == ()
    assert occupancy.peak_position is None
    assert occupancy.fullest(ARENA) is None
    assert sum(value.counted_bytes for value in occupancy.contents(None)) == 8 + 70 + 16 + 4


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_both_ways_of_counting_agree_on_real_dumps(directory: Path) -> None:
    _check_consistency(Occupancy(read_path(directory)))


@needs_seed_003
def test_reference_dump_003() -> None:
    occupancy = Occupancy(read_path(SEED_003))
    _check_consistency(occupancy)
    # The dump has no aliases, so XLA's own figure counts nothing twice.
    assert (occupancy.peak_position, occupancy.peak_bytes) == (58, 931_536_164)


def _check_consistency(occupancy: Occupancy) -> None:
    totals = occupancy.plan.totals
    device_bytes = totals.total_allocation_bytes - totals.thread_local_bytes
    assert len(occupancy.occupied_bytes) == (occupancy.last_position or 0) + 1
    for position, occupied_bytes in enumerate(occupancy.occupied_bytes):
        contents = occupancy.contents(position)
        assert sum(value.counted_bytes for value in contents) == occupied_bytes
        assert occupied_bytes <= device_bytes
    for allocation in occupancy.plan.allocations:
        fullest = occupancy.fullest(allocation)
        if fullest is not None and not allocation.is_a(AllocationKind.THREAD_LOCAL):
            position, most_bytes = fullest
            contents = occupancy.contents(position, [allocation])
            counted_bytes = sum(value.counted_bytes for value in contents)
            assert counted_bytes == most_bytes <= allocation.size_bytes
