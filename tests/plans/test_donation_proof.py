"""The outcome of each donation, and the reasons for failed ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.shared.hlo_objects import instruction, logical_buffer
from tests.shared.programs import program_of, with_facts
from xlapipe.dump.dump import open_dump
from xlapipe.expect import Aliased, Donated, check_all
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    InputOutputAlias,
    Instruction,
    LogicalBuffer,
    Plan,
    SourceLine,
)
from xlapipe.plans.donation import Donation, DonationOutcome, donations
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program
from xlapipe.report.donation_lines import donation_lines

PARAMETER, LIVE = AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT
TEMP = AllocationKind.PREALLOCATED_TEMP
SHAPE = "bf16[8,128]{1,0}"
LINE = SourceLine("step.py", 7)


def value(name: str, shape: str = SHAPE, size: int = 2048) -> LogicalBuffer:
    return logical_buffer(name, 0, size, shape)


def leaf(path: str, number: int | None, **fields: Any) -> ArgumentLeaf:
    return replace(ArgumentLeaf(path, (8, 128), "bfloat16", 2048, True, number), **fields)


def program(
    *entry: Instruction,
    allocations: tuple[BufferAllocation, ...] = (),
    arguments: tuple[ArgumentLeaf, ...] = (leaf("cache", 0),),
    outputs: tuple[OutputLeaf, ...] = (OutputLeaf("out", (8, 128), "bfloat16", 2048, 0),),
    aliases: tuple[InputOutputAlias, ...] = (),
    donors: tuple[int, ...] = (),
    **computations: Computation,
) -> Program:
    body = entry or (instruction("cache", "parameter", SHAPE, parameter_number=0),)
    main = Computation("main", body, body[-1].name)
    module = HloModule("jit_step", {**computations, "main": main}, "main")
    plan = Plan(
        allocations or (BufferAllocation(0, 2048, (PARAMETER,), 0, values=(value("cache"),)),),
        module=module,
        header_aliases=aliases,
        buffer_donors=tuple((number, ()) for number in donors),
    )
    return program_of(plan, arguments=arguments, outputs=outputs)


def only(program: Program) -> Donation:
    (row,) = donations(program)
    return row


IN_PLACE = program(
    instruction("cache", "parameter", SHAPE, parameter_number=0),
    instruction("update", "dynamic-update-slice", SHAPE, ("cache",), source=LINE),
    allocations=(
        BufferAllocation(0, 2048, (PARAMETER, LIVE), 0, values=(value("cache"), value("update"))),
    ),
    aliases=(InputOutputAlias(0, ()),),
)


def test_in_place() -> None:
    row = only(IN_PLACE)
    assert (row.outcome, row.output, row.copies) == (DonationOutcome.ALIASED, "out", ())
    assert row.holds and row.reason == ""


def test_a_leaf_that_is_not_donated_has_no_row() -> None:
    assert donations(with_facts(IN_PLACE, arguments=(leaf("cache", 0, donated=False),))) == ()


@pytest.mark.parametrize(
    ("changed", "outcome", "reason"),
    [
        (
            program(arguments=(leaf("cache", None),)),
            DonationOutcome.DROPPED,
            "the program does not use it",
        ),
        (
            program(outputs=(OutputLeaf("out", (8, 128), "float32", 4096, 0),), donors=(0,)),
            DonationOutcome.DONOR_ONLY,
            "no output has its shape and dtype: out is float32, 4,096 B",
        ),
        (
            program(outputs=(OutputLeaf("out", (), "float32", 4, 0),)),
            DonationOutcome.UNUSED,
            "no output has its shape and dtype",
        ),
        (
            program(outputs=(OutputLeaf("out", (8, 128), "bfloat16", 1024, 0),)),
            DonationOutcome.UNUSED,
            "the sharding of out differs: 1,024 B on each device, not 2,048 B",
        ),
        (
            program(),
            DonationOutcome.UNUSED,
            "XLA aliased no output to it, although out has its shape",
        ),
    ],
)
def test_a_donation_that_failed(changed: Program, outcome: DonationOutcome, reason: str) -> None:
    row = only(changed)
    assert row.outcome is outcome
    assert reason in row.reason
    assert row.advice and not row.holds and row.output is None
    for expectation in (Aliased("cache"), Donated("cache")):
        (finding,) = check_all((expectation,), changed)
        assert reason in finding.violations[0].found


def test_an_output_that_is_aliased_to_another_leaf() -> None:
    arguments = (leaf("old", 0), leaf("new", 1))
    _, row = donations(with_facts(IN_PLACE, arguments=arguments))
    assert row.reason == "out has its shape and dtype, but is aliased to old"


@pytest.mark.parametrize(
    ("changed", "found", "advice"),
    [
        ({}, "out has a separate allocation", "add the argument 'new'"),
        ({"shape": (9, 128)}, "it is not donated", "return its new value with its shape and dtype"),
        ({"path": "other"}, "out is aliased to cache", "return one more value of its shape"),
    ],
)
def test_a_leaf_that_is_not_donated_gets_the_advice_that_works(
    changed: dict[str, Any], found: str, advice: str
) -> None:
    new = replace(leaf("new", 1, donated=False), **changed)
    step = with_facts(
        IN_PLACE if new.path == "other" else program(), arguments=(leaf("cache", 0), new)
    )
    (violation,) = Aliased(new.path).check(step).violations
    assert violation.found.endswith(found)
    assert violation.advice.startswith(advice)


def test_the_same_buffer_in_two_leaves() -> None:
    shared = program(
        *IN_PLACE.plan.entry.instructions,
        allocations=IN_PLACE.plan.allocations,
        arguments=(leaf("cache", 0, same_as="weights['head']"),),
        aliases=(InputOutputAlias(0, ()),),
    )
    row = only(shared)
    assert row.outcome is DonationOutcome.SAME_BUFFER
    assert "weights['head'] is the same array" in row.reason
    assert not check_all((Aliased("cache"),), shared)[0].holds


def copied(*, bytes_copied: int = 2048, into: bool = False, shape: str = SHAPE) -> Program:
    """An alias with an additional copy: out of the donated buffer, or from temp memory into it."""
    other = value("copy", shape, bytes_copied)
    donated_values = [value("cache"), value("update"), *([other] if into else [])]
    other_values = [value("work")] if into else [other]
    kinds = (TEMP,) if into else (LIVE,)
    source = "work" if into else "cache"
    return program(
        instruction("cache", "parameter", SHAPE, parameter_number=0),
        instruction("work", "add", SHAPE, ("cache",)),
        instruction("copy", "copy", shape, (source,), source=LINE),
        instruction("update", "dynamic-update-slice", SHAPE, ("cache",)),
        allocations=(
            BufferAllocation(0, 2048, (PARAMETER, LIVE), 0, values=tuple(donated_values)),
            BufferAllocation(1, 2048, kinds, values=tuple(other_values)),
        ),
        aliases=(InputOutputAlias(0, ()),),
    )


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        (SHAPE, "do not read the old value after the update"),
        (
            "bf16[8,128]{0,1}",
            "XLA writes cache once more, in another order of dimensions, for what reads it at "
            "step.py:7: pass cache in that order, or",
        ),
        ("bf16[8,128]{0,1:T(8,128)}", "XLA writes cache once more"),
    ],
)
def test_advice_against_a_copy_fits_its_kind(shape: str, advice: str) -> None:
    row = only(copied(shape=shape))
    assert row.outcome is DonationOutcome.COPIED
    assert row.advice.startswith(advice)
    assert "copies_up_to_bytes=2048" in row.advice


def test_a_small_counter_beside_a_cache_is_allowed_by_its_bytes() -> None:
    counter = leaf("cache.index", 0, shape=(), dtype="int32", size_bytes=4)
    step = with_facts(copied(bytes_copied=4), arguments=(counter,))
    (row,) = donations(step)
    assert row.outcome is DonationOutcome.COPIED
    assert "allow it with Donated(…, copies_up_to_bytes=4)" in row.advice
    (finding,) = check_all((Donated("cache"),), step)
    assert "copies_up_to_bytes=4" in finding.violations[0].advice
    (allowed,) = check_all((Donated("cache", copies_up_to_bytes=4),), step)
    assert allowed.holds


@pytest.mark.parametrize("into", [False, True])
def test_an_alias_with_a_copy(into: bool) -> None:
    step = copied(into=into)
    row = only(step)
    assert (row.outcome, row.output, row.source) == (DonationOutcome.COPIED, "out", LINE)
    assert [(copy.instruction, copy.copied_bytes) for copy in row.copies] == [("copy", 2048)]
    # `Aliased` holds; `Donated` fails unless it allows a copy of this size.
    aliased, donated, limited, below = check_all(
        (Aliased("cache"), Donated("cache"), Donated("cache", 2048), Donated("cache", 2047)), step
    )
    assert (aliased.holds, donated.holds, limited.holds, below.holds) == (True, False, True, False)
    assert "2,048 B" in donated.violations[0].found


@pytest.mark.parametrize(
    ("bytes_copied", "advice"),
    [(1024, "nothing: a copy of 1,024 B costs almost no time"), (1025, "do not read the old")],
)
def test_a_copy_of_a_kilobyte_costs_no_time(bytes_copied: int, advice: str) -> None:
    assert only(copied(bytes_copied=bytes_copied)).advice.startswith(advice)


def test_a_copy_of_an_element_of_a_tuple_is_blamed_on_that_leaf_alone() -> None:
    carry = f"({SHAPE}, {SHAPE})"
    step = program(
        instruction("a", "parameter", SHAPE, parameter_number=0),
        instruction("b", "parameter", SHAPE, parameter_number=1),
        instruction("all", "tuple", carry, ("a", "b")),
        instruction("copy", "copy", SHAPE, ("all",), operand_indices=((1,),)),
        allocations=(
            BufferAllocation(0, 2048, (PARAMETER, LIVE), 0, values=(value("a"),)),
            BufferAllocation(1, 2048, (PARAMETER, LIVE), 1, values=(value("b"),)),
            BufferAllocation(2, 2048, (TEMP,), values=(value("copy"),)),
        ),
        arguments=(leaf("a", 0), leaf("b", 1)),
        aliases=tuple(InputOutputAlias(n, (n,)) for n in range(2)),
    )
    a, b = donations(step)
    assert a.holds
    assert b.reason == "copy copies 2,048 B of it"


@pytest.mark.parametrize(
    ("workload", "paths"),
    [
        ("qwen3-step", []),
        ("qwen3-step-donated", ["p16"]),
        ("qwen3-prefill", ["cache[0]['k']", "cache[0]['v']", "cache[1]['k']", "cache[1]['v']"]),
        ("qwen3-decode", ["cache[0]['k']", "cache[0]['v']", "cache[1]['k']", "cache[1]['v']"]),
    ],
)
def test_donations_of_the_goldens_hold(workload: str, paths: list[str], goldens: Path) -> None:
    folders = sorted((goldens / workload).iterdir())
    assert folders
    for folder in folders:
        dump = open_dump(folder)
        rows = donations(dump)
        assert [row.path for row in rows] == paths
        assert [row.reason for row in rows if not row.holds] == []
        assert sum(row.size_bytes for row in rows) == dump.plan.totals.aliased_bytes


def test_lines_list_failures() -> None:
    rows = (only(IN_PLACE), replace(only(copied()), path="other"))
    heading, first, copy, advice = donation_lines(rows)
    assert heading == "donation: 1 of 2 leaves in place, 2,048 B"
    assert "ALIASED, BUT COPIED -> out: copy copies 2,048 B of it" in first
    assert copy.strip() == "copy, 2,048 B at step.py:7"
    assert advice.strip().startswith("try: ")
    assert list(donation_lines(())) == []
