"""Values that a plan keeps from the forward to the backward pass, at its peak."""

from dataclasses import replace
from pathlib import Path

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.compile.lowering.forward_graph import ForwardValue, PolicyKey
from xlapipe.dump.readers import read_path
from xlapipe.plans.kept_values import kept_values
from xlapipe.search.choosing.at_peak import held_at_peak

DUMP = (
    Path(__file__).parents[2] / f"hlo_dumps/resnet50-train/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
)


def test_a_value_is_held_by_one_of_its_line_and_size() -> None:
    plan = read_path(DUMP)
    largest = max((held.value for held in kept_values(plan)), key=lambda value: value.size_bytes)
    source = str(plan.nearest_source(largest.instruction))
    value = ForwardValue(
        number=0, key=PolicyKey("mul", (), ""), shape=largest.shape.dims, dtype="",
        size_bytes=largest.size_bytes, operations=0, touched_bytes=0, inputs=(), needed=True,
        differentiated=True, source=source, loop=None, trips=1,
    )  # fmt: skip
    holder, kept_bytes = held_at_peak((value,), plan, several_devices=False)
    assert holder[0].value.size_bytes == largest.size_bytes < kept_bytes
    assert held_at_peak((replace(value, needed=False),), plan, several_devices=False)[0] == {}


def test_a_plan_without_live_ranges_or_without_gradients_keeps_nothing() -> None:
    plan = read_path(DUMP)
    assert kept_values(replace(plan, live_ranges=None)) == ()
    forward = DUMP.parents[1] / "resnet50-forward" / DUMP.name
    assert kept_values(read_path(forward)) == ()
