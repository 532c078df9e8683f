"""While loops: trip counts, and copies in each trip, on hand-written modules."""

import pytest

from tests.shared.hlo_objects import instruction, logical_buffer
from xlapipe.expect import (
    Expectation,
    LoopOfTrips,
    NoCopyAbove,
    NoCopyInLoopAbove,
)
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    Instruction,
    LogicalBuffer,
    Plan,
    SourceLine,
)
from xlapipe.plans.copies import find_copies
from xlapipe.plans.loops import executions, find_loops
from xlapipe.plans.program import Program

LEAF = "bf16[8,128]{1,0}"
LEAF_BYTES = 2048
CARRY = f"(s32[], {LEAF}, {LEAF})"
LINE = SourceLine("step.py", 7)
FOUR_TRIPS = '{"known_trip_count":{"n":"4"}}'


def value(name: str, shape: str = LEAF) -> LogicalBuffer:
    return logical_buffer(name, 0, LEAF_BYTES, shape)


def allocation(index: int, *values: LogicalBuffer) -> BufferAllocation:
    return BufferAllocation(index, LEAF_BYTES, (AllocationKind.PREALLOCATED_TEMP,), values=values)


def looping(
    *body: Instruction,
    allocations: tuple[BufferAllocation, ...] = (),
    config: str = FOUR_TRIPS,
    after: tuple[Instruction, ...] = (),
    **others: tuple[Instruction, ...],
) -> Program:
    """A loop of `body` over two leaves in allocations 0 and 1, followed by `after`."""
    in_body = (
        instruction("carry", "parameter", CARRY, parameter_number=0),
        *body,
        instruction("next", "tuple", CARRY, ("carry", *(instruction.name for instruction in body))),
    )
    condition = (instruction("less", "constant", "pred[]"),)
    entry = (
        instruction("start", "parameter", CARRY, parameter_number=0),
        instruction(
            "while",
            "while",
            CARRY,
            ("start",),
            called_computations=("body", "condition"),
            backend_config=config,
            source=LINE,
        ),
        *after,
    )
    bodies = {**others, "condition": condition, "body": in_body, "main": entry}
    module = HloModule(
        "jit_step",
        {
            name: Computation(name, instructions, instructions[-1].name)
            for name, instructions in bodies.items()
        },
        "main",
    )
    carried = (
        allocation(0, value("carry{1}"), value("while{1}")),
        allocation(1, value("carry{2}"), value("while{2}")),
    )
    return Program(Plan((*carried, *allocations), module=module))


def copy(name: str, operand: str = "carry") -> Instruction:
    return instruction(name, "copy", LEAF, (operand,), source=LINE)


UPDATE = instruction("update", "dynamic-update-slice", LEAF, ("carry", "row"), source=LINE)
IN_PLACE = looping(UPDATE, allocations=(allocation(2, value("other")),))
COPIED = looping(copy("copy.1"), allocations=(allocation(2, value("copy.1")),))


def moved_to_other_leaf() -> Program:
    """A copy of a leaf of the carry into the memory of the other leaf."""
    program = looping(copy("copy.1"))
    first, second = program.plan.allocations
    moved = allocation(0, *first.values, value("copy.1"))
    return Program(Plan((moved, second), module=program.plan.module))


def updated() -> Program:
    program = looping(UPDATE)
    first, second = program.plan.allocations
    written = allocation(0, *first.values, value("update"))
    return Program(Plan((written, second), module=program.plan.module))


@pytest.mark.parametrize("program", [COPIED, moved_to_other_leaf()], ids=["copied", "moved"])
def test_a_copy_in_a_loop_is_reported_with_instruction_bytes_and_line(program: Program) -> None:
    (violation,) = NoCopyInLoopAbove(LEAF_BYTES - 1).check(program).violations
    assert violation.found == "2,048 B copied by copy.1 in each trip"
    assert "value copy.1" in violation.where
    assert violation.source == LINE
    assert NoCopyInLoopAbove(LEAF_BYTES).check(program).holds


def test_an_update_in_place_is_not_a_copy() -> None:
    assert find_copies(updated().plan) == ()
    assert NoCopyInLoopAbove(0).check(updated()).holds


def test_a_copy_after_the_loop_is_not_in_the_loop() -> None:
    after = instruction("copy.9", "copy", LEAF, ("while",), source=LINE)
    program = looping(UPDATE, after=(after,), allocations=(allocation(2, value("copy.9")),))
    assert NoCopyInLoopAbove(LEAF_BYTES - 1).check(program).holds
    assert not NoCopyAbove(LEAF_BYTES - 1).check(program).holds


@pytest.mark.parametrize("opcode", ["call", "conditional", "while", "async-start"])
def test_called_computations_are_part_of_the_loop(opcode: str) -> None:
    call = instruction("call", opcode, LEAF, ("carry",), called_computations=("called",))
    program = looping(
        call,
        called=(instruction("given", "parameter", LEAF), copy("copy.1", "given")),
        allocations=(allocation(2, value("copy.1")),),
    )
    assert not NoCopyInLoopAbove(LEAF_BYTES - 1).check(program).holds


@pytest.mark.parametrize(
    ("opcode", "copied_values"),
    [("reverse", ["fusion.1{1}"]), ("tanh", [])],
)
def test_a_copy_fused_with_arithmetic_is_found(opcode: str, copied_values: list[str]) -> None:
    fused = (
        instruction("given", "parameter", LEAF, parameter_number=0),
        instruction("worked", "tanh", LEAF, ("given",)),
        instruction("moved", opcode, LEAF, ("given",)),
        instruction("both", "tuple", f"({LEAF}, {LEAF})", ("worked", "moved")),
    )
    fusion = instruction(
        "fusion.1", "fusion", f"({LEAF}, {LEAF})", ("carry",), called_computations=("fused",)
    )
    outputs = (allocation(2, value("fusion.1{0}")), allocation(3, value("fusion.1{1}")))
    program = looping(fusion, fused=fused, allocations=outputs)
    assert [copy.value for copy in find_copies(program.plan)] == copied_values


def test_how_often_a_branch_runs_is_unknown() -> None:
    branch = (instruction("given", "parameter", LEAF, parameter_number=0),)
    chosen = instruction(
        "chosen", "conditional", LEAF, ("carry", "carry"), called_computations=("one", "two")
    )
    called = instruction("called", "call", LEAF, ("carry",), called_computations=("three",))
    program = looping(chosen, called, one=branch, two=branch, three=branch)
    assert program.plan.module is not None
    runs = executions(program.plan.module)
    assert (runs["one"], runs["two"], runs["three"], runs["body"]) == (None, None, 4, 4)


def test_the_body_of_a_fusion_is_not_part_of_a_loop() -> None:
    body = (
        instruction("given", "parameter", LEAF, parameter_number=0),
        instruction("inner", "negate", LEAF, ("given",)),
    )
    fusion = instruction("f", "fusion", LEAF, ("carry",), called_computations=("fused",))
    call = instruction("c", "call", LEAF, ("carry",), called_computations=("called",))
    given = body[0]._replace(name="passed")
    program = looping(fusion, call, fused=body, called=(given, body[1]._replace(name="outer")))
    assert program.plan.module is not None
    (loop,) = find_loops(program.plan.module)
    assert {"f", "c", "outer", "less"} <= loop.instructions
    assert "inner" not in loop.instructions


@pytest.mark.parametrize(
    ("config", "trips"),
    [(FOUR_TRIPS, 4), ('{"known_trip_count":{"n":4}}', 4), ("", None), ("{}", None)],
)
def test_trips_are_xlas_known_trip_count(config: str, trips: int | None) -> None:
    program = looping(UPDATE, config=config)
    assert program.plan.module is not None
    (loop,) = find_loops(program.plan.module)
    assert loop.trips == trips
    assert LoopOfTrips(4).check(program).holds == (trips == 4)
    assert not LoopOfTrips(5).check(program).holds


def test_two_loops_with_the_same_trip_count_are_not_one() -> None:
    again = instruction(
        "while.2",
        "while",
        CARRY,
        ("while",),
        called_computations=("condition", "body"),
        backend_config=FOUR_TRIPS,
    )
    (violation,) = LoopOfTrips(4).check(looping(UPDATE, after=(again,))).violations
    assert violation.found == "trips: 4, 4"


@pytest.mark.parametrize("expectation", [NoCopyInLoopAbove(2048), LoopOfTrips(4)])
def test_a_dump_without_loops_or_without_their_bodies_fails(expectation: Expectation) -> None:
    entry = (instruction("x", "parameter", LEAF, parameter_number=0),)
    computations = {"main": Computation("main", entry, "x")}
    straight = Program(Plan((), module=HloModule("jit_step", computations, "main")))
    partial = Program(Plan((), module=HloModule("m", computations, None, complete=False)))
    assert expectation.check(straight).violations[0].found == "none"
    for program in (partial, Program(Plan(()))):
        assert "no complete HLO module" in expectation.check(program).violations[0].found
