"""Kernels that are the same whatever their names have one signature."""

import pytest

from tests.shared.small_hlo import plan_of_text

# One byte takes a microsecond, and so does one operation.
from tests.time.cost_of_text import module
from xlapipe.time.cost.schedule import Site, schedule_of
from xlapipe.time.predict.kernel_work import signature

KERNEL_BODY = """%body (x: f32[8], y: f32[8]) -> pred[8] {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %two = s32[] constant(2)
  ROOT %c = pred[8]{0} compare(%x, %y), direction=LT
}
"""
KERNEL_ENTRY = """
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  ROOT %f = pred[8]{0} fusion(%a, %b), kind=kLoop, calls=%body, backend_config={"tiles":"8"}
"""


def signature_of(entry: str, *computations: str) -> object:
    plan = plan_of_text(module(entry, *computations))
    assert plan.module is not None
    (site,) = schedule_of(plan.module)
    assert isinstance(site, Site)
    return signature(site, plan.module)


def test_a_kernel_has_one_signature_whatever_its_names() -> None:
    renamed = KERNEL_ENTRY.replace("%body", "%other").replace("%f", "%g").replace("%a", "%k")
    body = KERNEL_BODY.replace("%body", "%other").replace("%x", "%v")
    assert signature_of(renamed, body) == signature_of(KERNEL_ENTRY, KERNEL_BODY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("direction=LT", "direction=GT"),
        ("compare(%x, %y)", "compare(%y, %x)"),
        ("constant(2)", "constant(3)"),
        ("kind=kLoop", "kind=kInput"),
        ('"tiles":"8"', '"tiles":"4"'),
        ("%a = f32[8]{0}", "%a = f32[8]{0:S(5)}"),
        ("f32[8]{0} parameter(0)", "bf16[8]{0} parameter(0)"),
    ],
)
def test_a_kernel_that_computes_something_else_has_another_signature(old: str, new: str) -> None:
    entry, body = (text.replace(old, new) for text in (KERNEL_ENTRY, KERNEL_BODY))
    assert signature_of(entry, body) != signature_of(KERNEL_ENTRY, KERNEL_BODY)


def test_a_kernel_whose_body_is_missing_has_a_signature() -> None:
    assert signature_of(KERNEL_ENTRY) != signature_of(KERNEL_ENTRY, KERNEL_BODY)
