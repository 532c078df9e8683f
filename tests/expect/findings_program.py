"""A program of a few kernels, for the tests of what expectations find."""

from dataclasses import replace
from pathlib import Path

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.plans import AllocationKind, BufferAllocation, InputOutputAlias
from xlapipe.plans.program import (
    ArgumentLeaf,
    OutputLeaf,
    Program,
    RequestedCollective,
    RequestedDot,
)

ROW, WIDE, MATRIX = "f32[8]{0}", "f32[16]{0}", "f32[8,8]{1,0}"
TRIPS = 'backend_config={"known_trip_count":{"n":"3"}}'


# Argument x is donated and updated in place; w is not; the loop copies its carry.
TEXT = Path(__file__).with_name("texts").joinpath("findings_hlo.txt").read_text(encoding="utf-8")
MEMORY = {
    "x": 0, "out": 0, "w": 1, "h": 2, "gather": 3, "sum": 4, "gemm{0}": 5, "conv{0}": 6,
    "loop": 7, "triton": 8, "empty": 9, "undefined": 10, "while{1}": 10, "kept": 11,
}  # fmt: skip
ALIVE = {"gather": (4, 17)}
KINDS = {
    0: (AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT),
    1: (AllocationKind.PARAMETER,),
    2: (AllocationKind.PARAMETER,),
    8: (AllocationKind.MAYBE_LIVE_OUT,),
}


def placed(allocation: BufferAllocation) -> BufferAllocation:
    number = allocation.index if allocation.index < 3 else None
    return replace(
        allocation,
        kinds=KINDS.get(allocation.index, (AllocationKind.PREALLOCATED_TEMP,)),
        parameter_number=number,
        color=5 if number == 2 else 0,
    )


def program() -> Program:
    plan = plan_of_text(TEXT, MEMORY, ALIVE)
    plan = replace(
        plan,
        allocations=tuple(map(placed, plan.allocations)),
        header_aliases=(InputOutputAlias(0, (0,)),),
    )
    return program_of(
        plan,
        gemm_policy="cublas",
        arguments=(
            ArgumentLeaf("x", (8,), "float32", 32, True, 0),
            ArgumentLeaf("w", (8, 8), "float32", 256, False, 1),
            ArgumentLeaf("h", (8,), "float32", 32, False, 2),
        ),
        outputs=(
            OutputLeaf("out[0]", (8,), "float32", 32, 0),
            OutputLeaf("out[1]", (8,), "float32", 32, 1),
        ),
        requested_dots=(RequestedDot("jit(step)/up/dot_general", "f32[8,8]", None),),
        requested_collectives=(
            RequestedCollective(
                "all-gather", "jit(step)/fetch/all_gather", ("float32[8]",), 1, None
            ),
            RequestedCollective("all-reduce", "jit(step)/loss/psum", ("float32[8]",), 1, None),
        ),
        target="h200",
    )


PROGRAM = program()
