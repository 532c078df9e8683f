"""Copies of memory that was never written, which `jax.lax.empty` allocates."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans import Plan
from xlapipe.plans.copies import undefined_copies

X = "f32[8]{0}"
EMPTY = f'%e = {X} custom-call(), custom_call_target="AllocateBuffer"'


def found(line: str, *computations: str) -> list[tuple[str, str, int]]:
    text = "\n".join(
        (
            "HloModule m, is_scheduled=true\n",
            *computations,
            "ENTRY %main (x: f32[8]) -> f32[8] {",
            f"  %x = {X} parameter(0)\n  %i = s32[] parameter(1)\n  {EMPTY}",
            f"  %n = {X} negate(%x)",
            f"  ROOT {line}",
            "}\n",
        )
    )
    copies = undefined_copies(plan_of_text(text, {"x": 0, "e": 1, "n": 2, "r": 3}))
    assert copies is not None
    return [(copy.instruction, copy.buffer, copy.size_bytes) for copy in copies]


def fused(*lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"%body (y: f32[8]) -> f32[8] {{\n  %y = {X} parameter(0)\n{body}\n}}\n"


FUSION = f"%r = {X} fusion(%e), kind=kLoop, calls=%body"


@pytest.mark.parametrize(
    ("line", "size_bytes"),
    [
        (f"%r = {X} copy(%e)", 32),
        (f"%r = {X} reverse(%e), dimensions={{0}}", 32),
        ("%r = bf16[8]{0} convert(%e)", 16),
        ("%r = f32[2,8]{1,0} broadcast(%e), dimensions={1}", 64),
        ("%r = f32[9]{0} pad(%e, %i), padding=0_1", 36),
        # Not written in place: XLA copies the rest of it first.
        (f"%r = {X} dynamic-update-slice(%e, %x, %i)", 32),
    ],
)
def test_instructions_that_write_undefined_data_to_other_memory(line: str, size_bytes: int) -> None:
    assert found(line) == [("r", "e", size_bytes)]


@pytest.mark.parametrize(
    "body",
    [
        fused("ROOT %c = bf16[8]{0} convert(%y)"),
        fused("%t = f32[8]{0} bitcast(%y)", "ROOT %c = f32[2,8]{1,0} broadcast(%t)"),
        fused("%t = f32[8]{0} copy(%y)", "ROOT %c = bf16[8]{0} convert(%t)"),
    ],
)
def test_fusions_that_write_it_to_other_memory(body: str) -> None:
    assert found(FUSION, body) == [("r", "e", 32)]


def test_a_computation_on_it_is_not_a_copy_and_neither_is_a_copy_of_other_data() -> None:
    assert found(f"%r = {X} negate(%e)") == []
    assert found(f"%r = {X} copy(%n)") == []
    body = fused("%t = f32[8]{0} negate(%y)", "ROOT %c = bf16[8]{0} convert(%t)")
    assert found(FUSION, body) == []
    assert found(FUSION, fused("ROOT %c = f32[8]{0} bitcast(%y)")) == []


def test_a_plan_without_a_module_has_no_answer() -> None:
    assert undefined_copies(Plan(())) is None
