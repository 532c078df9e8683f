"""Expectations GivenUp, ReadAtMost, NoValueOfShape, ValuesOfShapeAtMost and FastAccumulation."""

import json
from pathlib import Path

import pytest

from tests.shared.hlo_objects import instruction, logical_buffer
from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.expect import (
    Expectation,
    FastAccumulation,
    GivenUp,
    NoValueOfShape,
    ReadAtMost,
    ValuesOfShapeAtMost,
    Violation,
)
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    Instruction,
    Plan,
    SourceLine,
)
from xlapipe.plans.program import ArgumentLeaf, Program, RequestedDot
from xlapipe.plans.readers import readers_of

LINE = SourceLine("layer.py", 12)
CODES = "f8e4m3fn[32,16]{1,0}"


def gemm(name: str, scope: str, **precision: object) -> Instruction:
    config = {"gemm_backend_config": {"precision_config": precision}}
    return instruction(
        name,
        "custom-call",
        "(bf16[32,32]{1,0}, s8[64]{0})",
        ("other_name", "other_name"),
        custom_call_target="__cublas$lt$matmul$f8",
        op_name=f"jit(step)/{scope}/dot_general",
        source=LINE,
        backend_config=json.dumps(config),
    )


def program(*instructions: Instruction, donors: tuple[int, ...] = (0,)) -> Program:
    """`step(codes, g)`: a bitcast of `codes`, and `instructions`."""
    entry = (
        instruction("codes", "parameter", CODES, parameter_number=0),
        instruction("g", "parameter", "bf16[1,32,32]{2,1,0}", parameter_number=1),
        instruction("other_name", "bitcast", CODES, ("codes",)),
        *instructions,
    )
    values = (
        logical_buffer("gemm{0}", 0, 2048, "f32[1,16,32]{2,1,0}"),
        logical_buffer("gemm{}", 2048, 16, "(f32[16,32]{1,0}, s8[64]{0})"),
        logical_buffer("copy", 2064, 1024, "bf16[32,16]{1,0}"),
    )
    return program_of(
        Plan(
            (BufferAllocation(0, 4096, (AllocationKind.PREALLOCATED_TEMP,), values=values),),
            module=HloModule(
                "jit_step", {"main": Computation("main", entry, entry[-1].name)}, "main"
            ),
            buffer_donors=tuple((number, ()) for number in donors),
        ),
        gemm_policy="cublas",
        arguments=(
            ArgumentLeaf("residuals['codes']", (32, 16), "float8_e4m3fn", 512, True, 0),
            ArgumentLeaf("g", (32, 32), "bfloat16", 2048, False, 1),
        ),
    )


FAST = gemm("one", "jvp(y)", operand_precision=["DEFAULT", "DEFAULT"])
EXACT = gemm("two", "transpose(jvp(dx))/cond", operand_precision=["HIGHEST", "HIGHEST"])
TRANSPOSED = instruction("t", "transpose", "f8e4m3fn[16,32]{1,0}", ("codes",), source=LINE)


def violations(expectation: Expectation, program: Program) -> tuple[Violation, ...]:
    return expectation.check(program).violations


def test_a_buffer_donor_without_an_alias_counts_as_given_up() -> None:
    assert violations(GivenUp("residuals"), program()) == ()
    (violation,) = violations(GivenUp("residuals"), program(donors=()))
    assert "donated, but" in violation.found
    (violation,) = violations(GivenUp("g"), program())
    assert "'g'" in violation.advice
    (violation,) = violations(GivenUp("nothing"), program())
    assert "residuals['codes']" in violation.found


def test_readers_are_counted_through_a_bitcast() -> None:
    expectation = ReadAtMost("residuals['codes']", 2)
    assert violations(expectation, program(FAST, EXACT)) == ()
    (violation,) = violations(expectation, program(FAST, EXACT, TRANSPOSED))
    assert "read by 3: one (custom-call), two (custom-call), t (transpose)" in violation.found
    assert violation.source == LINE
    assert violations(ReadAtMost("g", 0), program(FAST)) == ()
    assert violations(ReadAtMost("nothing", 0), program(FAST)) != ()


@pytest.mark.parametrize(
    ("dims", "dtype", "count"),
    [
        ((16, 32), None, 2),
        ((32, 1, 16), None, 2),
        ((16, 32), "f32", 1),
        ((16, 32), "bf16", 1),
        ((16, 32), "f16", 0),
        ((64,), None, 0),
    ],
)
def test_values_of_a_shape_are_counted(
    dims: tuple[int, ...], dtype: str | None, count: int
) -> None:
    """Dimensions of size 1, the order of dimensions and tables of pointers are ignored."""
    assert violations(ValuesOfShapeAtMost(dims, count, dtype), program()) == ()
    if count:
        (violation,) = violations(ValuesOfShapeAtMost(dims, count - 1, dtype), program())
        assert violation.found.startswith(f"{count}: ")


# A product whose result is written as rows, and read by the kernel of a loss in the traced shape.
TEXTS = Path(__file__).with_name("texts")
LOGITS = (TEXTS / "logits_hlo.txt").read_text(encoding="utf-8")
LOGITS_AT = {"h": 0, "w": 1, "gemm": 2, "gemm{0}": 3, "gemm{1}": 4, "loss.1": 5, "twice": 6}


@pytest.mark.parametrize(
    ("dims", "count"),
    [
        ((4, 8, 320), 1),  # in the kernel that reads it
        ((32, 320), 1),  # as it is stored
        ((2, 2, 8), 1),  # in the kernel that writes it
        ((4, 8), 1),
        ((320, 8, 2, 2), 0),
    ],
)
def test_a_value_has_the_shapes_of_its_bitcasts(dims: tuple[int, ...], count: int) -> None:
    """Tables of pointers and workspaces have none."""
    logits = Program(plan_of_text(LOGITS, LOGITS_AT))
    assert len(violations(NoValueOfShape(dims), logits)) == count
    assert bool(violations(ValuesOfShapeAtMost(dims, 0), logits)) is bool(count)


def test_a_product_has_its_shape_in_the_traced_program() -> None:
    requested = (RequestedDot("dot", "bf16[2,16,320]{2,1,0}", None),)
    logits = program_of(plan_of_text(LOGITS, LOGITS_AT), requested_dots=requested)
    (violation,) = violations(NoValueOfShape((2, 16, 320)), logits)
    assert "value gemm{0}" in violation.where
    assert not violations(NoValueOfShape((2, 16, 320)), Program(logits.plan))


def test_readers_are_of_one_element() -> None:
    plan = plan_of_text(LOGITS, LOGITS_AT)
    assert readers_of(plan, "gemm{0}") == ("loss.1",)
    assert readers_of(plan, "gemm{1}") == ()
    assert readers_of(plan, "h") == ("gemm", "loss.1")


def test_fast_accumulation_in_the_listed_scopes_only() -> None:
    forward = FastAccumulation(("y",))
    assert violations(forward, program(FAST, EXACT)) == ()
    (violation,) = violations(forward, program(FAST, EXACT._replace(op_name="jit(step)/y/dot")))
    assert violation.expected.startswith("fast accumulation")
    (violation,) = violations(FastAccumulation(("dx",)), program(EXACT))
    assert violation.found == "float32"
    finding = FastAccumulation(()).check(program(FAST, EXACT))
    assert finding.measured == "1 of 2 float8 gemms fast"
    (violation,) = finding.violations
    assert violation.expected.startswith("float32 accumulation in jit(step)/jvp(y)")
    assert violation.found == "fast"
    # A scope is a whole path segment, and other gemms do not have this accumulator.
    assert violations(FastAccumulation(("d",)), program(EXACT)) == ()
    other = EXACT._replace(custom_call_target="__cublas$lt$matmul")
    assert violations(FastAccumulation(("dx",)), program(other)) == ()


@pytest.mark.parametrize("config", ["", "{}", '{"gemm_backend_config":{}}', "not json"])
def test_accumulation_is_unknown_without_a_precision_config(config: str) -> None:
    (product,) = program(FAST._replace(backend_config=config)).plan.gemms
    assert product.fast_accumulation is None


BARRIER = (TEXTS / "barrier_hlo.txt").read_text(encoding="utf-8")


def test_readers_are_counted_after_an_opt_barrier() -> None:
    program = program_of(
        plan_of_text(BARRIER), arguments=(ArgumentLeaf("x", (8,), "float32", 32, False, 0),)
    )
    (violation,) = violations(ReadAtMost("x", 1), program)
    assert violation.found == "read by 2: sine (sine), cosine (cosine)"
