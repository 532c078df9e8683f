"""The phases of a training step, from jax's names of operations."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans import Plan
from xlapipe.plans.phases import phases_of

X = "f32[8]{0}"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def named(op_name: str) -> str:
    return f'metadata={{op_name="jit(step)/{op_name}" source_file="s.py" source_line=1}}'


TEXT = f"""HloModule m, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = {X} parameter(0), metadata={{op_name="x"}}
  %scaled = {X} negate(%x), {named("mul")}
  %bit = {X} bitcast(%scaled)
  %loss = {X} tanh(%bit), {named("jvp(layer)/tanh")}
  %kept = {X} copy(%loss)
  %again = {X} tanh(%bit), {named("transpose(jvp(layer))/rematted_computation/tanh")}
  %same = {X} bitcast(%again)
  %grad = {X} multiply(%same, %kept), {named("transpose(jvp(layer))/mul")}
  %late = {X} tanh(%loss), {named("jvp(layer)/tanh")}
  %copied = {X} copy(%grad)
  %rate = {X} parameter(1), metadata={{op_name="rate"}}
  %less = {X} multiply(%late, %rate), {named("mul")}
  %new = {X} subtract(%copied, %less), {named("sub")}
  ROOT %t = ({X}) tuple(%new)
}}
"""
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
