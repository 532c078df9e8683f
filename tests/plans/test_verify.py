"""The invariants of a plan: violations are reported; what XLA permits is not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared.hlo_objects import logical_buffer
from xlapipe.errors import PlanMismatchError
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    InputOutputAlias,
    LiveRange,
    LiveRanges,
    LogicalBuffer,
    Plan,
)
from xlapipe.plans.verify import verify

ARENA = (AllocationKind.PREALLOCATED_TEMP,)
DONATED = (AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT)


def arena(*values: LogicalBuffer, kinds: tuple[AllocationKind, ...] = ARENA) -> BufferAllocation:
    return BufferAllocation(0, 1000, kinds, values=values)


def plan(allocation: BufferAllocation, *ranges: tuple[str, int, int]) -> Plan:
    live = LiveRanges((), tuple(LiveRange(*entry) for entry in ranges), None, None)
    return Plan((allocation,), live_ranges=live)


def reject(broken: Plan, message: str) -> None:
    with pytest.raises(PlanMismatchError, match=message) as caught:
        verify(broken, where="dump")
    assert str(caught.value).startswith("dump: expected ")
    assert "; fix: " in str(caught.value)


A = logical_buffer("a", 0, 100, "s8[100]{0}")
B = logical_buffer("b", 0, 100, "s8[100]{0}")
C = logical_buffer("c", 50, 100, "s8[100]{0}")


@pytest.mark.parametrize(
    "ranges",
    [
        (("a", 0, 3), ("b", 3, 9)),  # in place, or the next value of a loop's variable
        (("a", 0, 3), ("b", 4, 9)),
        (("a", 3, 3), ("b", 3, 9)),  # an alias that XLA cut down
        (("b", 3, 9), ("a", 3, 3)),
        (("a", 3, 3), ("b", 3, 3)),
    ],
)
def test_reusing_bytes_is_no_conflict(ranges: Sequence[tuple[str, int, int]]) -> None:
    verify(plan(arena(A, B), *ranges), where="dump")


@pytest.mark.parametrize(
    "ranges", [(("a", 0, 4), ("b", 3, 9)), (("b", 0, 9), ("a", 3, 3)), (("a", 3, 5), ("b", 3, 5))]
)
def test_two_live_values_in_the_same_bytes_conflict(ranges: Sequence[tuple[str, int, int]]) -> None:
    reject(plan(arena(A, B), *ranges), "bytes of allocation 0 shared by values")


def test_two_live_values_that_overlap_conflict() -> None:
    reject(plan(arena(A, C), ("a", 0, 4), ("c", 2, 5)), "a at bytes 0 to 100 alive 0-4")
    reject(plan(arena(A, C), ("a", 2, 2), ("c", 2, 5)), "c at bytes 50 to 150 alive 2-5")
    verify(plan(arena(A, C), ("a", 0, 2), ("c", 3, 5)), where="dump")


def test_empty_values_and_values_without_a_range_do_not_conflict() -> None:
    empty = logical_buffer("e", 10, 0, "s8[0]{0}")
    verify(plan(arena(A, empty), ("a", 0, 9), ("e", 0, 9)), where="dump")
    verify(plan(arena(A, B), ("a", 0, 9)), where="dump")


@pytest.mark.parametrize("kind", [AllocationKind.THREAD_LOCAL, AllocationKind.CONSTANT])
def test_constants_and_thread_local_values_do_not_conflict(kind: AllocationKind) -> None:
    verify(plan(arena(A, B, kinds=(kind,)), ("a", 0, 9), ("b", 0, 9)), where="dump")


def test_sizes_and_offsets() -> None:
    reject(Plan((replace(arena(), index=1),)), "allocation 0, found allocation 1")
    reject(Plan((replace(arena(), size_bytes=-1),)), "non-negative size and color, found size -1")
    reject(Plan((arena(replace(A, offset_bytes=901)),)), "within the 1000 bytes of allocation 0")
    reject(Plan((arena(replace(A, offset_bytes=-1)),)), "found offset -1")
    reject(Plan((arena(replace(A, size_bytes=-1)),)), "size -1")
    reject(Plan((arena(A), replace(arena(A), index=1))), "value a in one allocation")


def test_an_allocation_of_no_bytes_is_accepted() -> None:
    verify(Plan((replace(arena(), size_bytes=0),)), where="dump")
    reject(Plan((replace(arena(), color=-1),)), "found size 1000, color -1")


def test_neighbours_on_both_sides_of_a_new_value_are_compared() -> None:
    left, right = logical_buffer("l", 0, 60, "s8[60]{0}"), logical_buffer("r", 140, 60, "s8[60]{0}")
    verify(
        plan(arena(left, right, logical_buffer("n", 60, 80, "")), ("l", 0, 9), ("r", 0, 9)),
        where="d",
    )
    for offset in (59, 61):
        new = logical_buffer("n", offset, 80, "s8[80]{0}")
        ranges = ("l", 0, 9), ("r", 1, 9), ("n", 2, 9)
        reject(plan(arena(left, right, new), *ranges), "shared by values alive at the same time")
        # One that ended before does not matter.
        ended = ("l", 0, 2 if offset == 59 else 9), ("r", 1, 2 if offset == 61 else 9), ("n", 2, 9)
        verify(plan(arena(left, right, new), *ended), where="dump")


def test_total() -> None:
    verify(Plan((arena(),), total_bytes_used=1000), where="dump")
    reject(Plan((arena(),), total_bytes_used=1001), "XLA's total of 1001 bytes")


def test_parameters() -> None:
    one = BufferAllocation(0, 4, (AllocationKind.PARAMETER,), parameter_number=0)
    reject(Plan((one, replace(one, index=1))), r"one allocation for parameter 0\{\}")
    verify(Plan((one, replace(one, index=1, parameter_shape_index=(1,)))), where="dump")
    reject(Plan((replace(one, parameter_number=None),)), "parameter number")
    reject(Plan((replace(one, kinds=ARENA),)), "parameter number")
    reject(Plan((replace(one, parameter_number=-1),)), "-1")
    nested = replace(one, parameter_shape_index=(1, 0))
    reject(
        Plan((nested, replace(nested, index=1))), r"parameter 0\{1,0\}, found allocations 0 and 1"
    )
    reject(Plan((replace(one, parameter_number=None),)), "found no number")
    reject(Plan((replace(one, kinds=ARENA),)), "found number 0")


def test_aliases() -> None:
    cache = BufferAllocation(0, 4, DONATED, parameter_number=2)
    verify(Plan((cache,)), where="dump")
    verify(Plan((cache,), header_aliases=(InputOutputAlias(2, (0,)),)), where="dump")
    reject(Plan((cache,), header_aliases=()), "found no such alias in the module's header")
    reject(Plan((cache,), header_aliases=(InputOutputAlias(3, (0,)),)), r"parameter 3\{\}")
    plain = replace(cache, kinds=(AllocationKind.PARAMETER,))
    reject(Plan((plain,), header_aliases=(InputOutputAlias(2, (0,)),)), "maybe-live-out")


def test_a_live_value_has_an_allocation() -> None:
    reject(plan(arena(A), ("a", 0, 1), ("lost", 0, 1)), "an allocation for value lost")


values = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(0, 8), st.integers(0, 4)),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(values)
def test_the_sweep_finds_the_same_conflicts_as_comparing_all_pairs(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    buffers = [logical_buffer(str(n), o, s, "") for n, (o, s, _, _) in enumerate(drawn)]
    ranges = [(str(n), start, start + length) for n, (_, _, start, length) in enumerate(drawn)]
    conflict = any(
        _conflict(drawn[one], drawn[other]) for one in range(len(drawn)) for other in range(one)
    )
    candidate = plan(arena(*buffers), *ranges)
    if conflict:
        reject(candidate, "shared by values")
    else:
        verify(candidate, where="dump")


def _conflict(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    (o1, s1, b1, l1), (o2, s2, b2, _) = sorted((one, other), key=lambda v: (v[2], v[2] + v[3]))
    if not (s1 and s2 and o1 < o2 + s2 and o2 < o1 + s1):
        return False
    if b1 == b2:
        return not (l1 == 0 and (o1, s1) == (o2, s2))
    return b2 < b1 + l1
