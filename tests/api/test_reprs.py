"""Every object that a plan offers has a short repr: a notebook prints it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xlapipe
from tests.conftest import GOLDEN_JAXLIB

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / f"hlo_dumps/qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}"
INDUCTOR = ROOT / "tests/inductor/data/torch-2.13-cpu-dropout"
_DEEPEST = 6


def reached(root: object) -> Iterator[tuple[str, Any]]:
    """Objects of xlapipe that attributes of a plan lead to, with the path of each."""
    seen: dict[int, object] = {}
    left = [("plan", root)]
    while left:
        path, value = left.pop()
        own = type(value).__module__.startswith("xlapipe")
        if id(value) in seen or (not own and not isinstance(value, (list, tuple, dict))):
            continue
        seen[id(value)] = value
        # The repr of an expectation is the code that states it.
        if own and not type(value).__module__.startswith("xlapipe.expect"):
            yield path, value
        if isinstance(value, dict):
            left += [(f"{path}[{key!r}]", item) for key, item in list(value.items())[:4]]
        elif isinstance(value, (list, tuple)):
            left += [(f"{path}[{place}]", item) for place, item in enumerate(value[:4])]
        if own and path.count(".") < _DEEPEST:
            for name in (name for name in dir(value) if not name.startswith("_")):
                item = getattr(value, name, None)
                if not callable(item):
                    left.append((f"{path}.{name}", item))


def test_reprs_are_short() -> None:
    kinds = set()
    for dump in (GOLDEN, INDUCTOR):
        plan = xlapipe.read(dump)
        for path, value in reached(plan):
            kinds.add(type(value))
            assert len(repr(value)) < 500, path
    assert len(kinds) > 60


def test_what_methods_return_has_a_short_repr() -> None:
    plan = xlapipe.read(GOLDEN)
    assert isinstance(plan, xlapipe.StepPlan)
    values = (plan.table("peak"), plan.time, plan.aliases("cache"), plan.peak, plan.plan)
    assert [value for value in values if len(repr(value)) >= 500] == []
    assert repr(plan.time).startswith("StepTime(traffic_bytes=")
    assert len(plan._repr_html_()) < 400_000
