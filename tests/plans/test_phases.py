"""The phases of a training step, from jax's names of operations."""

from pathlib import Path

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans import Plan
from xlapipe.plans.phases import phases_of

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
TEXTS = Path(__file__).with_name("texts")
TEXT = (TEXTS / "phases_hlo.txt").read_text(encoding="utf-8")
PHASES = {
    "scaled": FORWARD,
    "loss": FORWARD,
    "again": BACKWARD,
    "grad": BACKWARD,
    # What is differentiated belongs to the forward pass wherever it runs.
    "late": FORWARD,
    "new": UPDATE,
}


@pytest.mark.parametrize("alive", [None, {"x": (0, 1)}])
def test_phases_of_instructions(alive: dict[str, tuple[int, int]] | None) -> None:
    phases = phases_of(plan_of_text(TEXT, {"x": 0}, alive))
    assert phases.trains
    assert {name: phases.of(name) for name in PHASES} == PHASES
    # A copy that XLA inserts, and an argument, are named by the instruction that reads them.
    assert phases.of("copied") == UPDATE
    assert phases.of("kept") == BACKWARD
    assert (phases.of("x"), phases.of("rate")) == (FORWARD, UPDATE)
    assert [name for name in PHASES if phases.recomputes(name)] == ["again"]


def test_phases_by_position() -> None:
    plan = plan_of_text(TEXT, {"x": 0}, {"x": (0, 1)})
    assert phases_of(plan).by_position == (
        *(FORWARD, FORWARD, FORWARD, FORWARD),  # x, scaled, bit, loss
        *(BACKWARD, BACKWARD, BACKWARD, BACKWARD, FORWARD),  # kept, again, same, grad, late
        *(UPDATE, UPDATE, UPDATE, UPDATE, UPDATE),  # copied, rate, less, new, t
    )
    assert phases_of(plan_of_text(TEXT)).by_position == ()


def test_a_program_without_gradients_has_no_phases() -> None:
    plan = plan_of_text(TEXT.replace("transpose(", "f("), {"x": 0}, {"x": (0, 1)})
    phases = phases_of(plan)
    assert not phases.trains
    assert phases.of("new") is None
    assert set(phases.by_position) == {None}
    assert not phases_of(Plan(())).trains


SOFTMAX = """HloModule m, is_scheduled=true

%computation (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %e = f32[8]{0} exponential(%p), metadata={source_file="a.py" source_line=7}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %triton_softmax = f32[8]{0} fusion(%x), kind=kCustom, calls=%computation
}
"""


def test_a_fusion_without_a_line_has_that_of_its_result() -> None:
    assert str(plan_of_text(SOFTMAX).nearest_source("triton_softmax")) == "a.py:7"
