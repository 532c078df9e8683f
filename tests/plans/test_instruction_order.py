"""How much of temp is held only by the order of instructions."""

import json
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import DATA
from tests.shared.small_hlo import order_is_valid, plan_of_text
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.plans.occupancy import Occupancy
from xlapipe.plans.temp_order.instruction_order import order_share, orders
from xlapipe.plans.temp_order.temp_graph import TempGraphs

# XLA's flags of temp only.
TEMP = ["preallocated-temp"]
DUMPS = (
    f"float8-linear-step/h200-cublas-jax{GOLDEN_JAXLIB}",
    f"fsdp-mlp/h200-1x2-cublas-jax{GOLDEN_JAXLIB}",
    f"qwen3-train/h200-1x8-cublas-jax{GOLDEN_JAXLIB}",
)

# Two products of 4,000 B are made before either is reduced to 4 B.
WIDE = """HloModule wide, is_scheduled=true

ENTRY main {
  x = f32[1000]{0} parameter(0)
  a = f32[1000]{0} negate(x)
  b = f32[1000]{0} sine(x)
  c = f32[1]{0} slice(a), slice={[0:1]}
  d = f32[1]{0} slice(b), slice={[0:1]}
  ROOT sum = f32[1]{0} add(c, d)
}
"""


@pytest.mark.parametrize("name", DUMPS)
def test_the_simulated_peak_is_the_one_of_xlas_live_ranges(name: str, goldens: Path) -> None:
    plan = open_dump(goldens / name).plan
    share, occupancy = order_share(plan), Occupancy(plan)
    assert share is not None
    temps = [a for a in plan.device_allocations if [str(kind) for kind in a.kinds] == TEMP]
    fullest = [occupancy.fullest(allocation) for allocation in temps]
    live_bytes = sum(peak[1] for peak in fullest if peak is not None)
    assert share.planned_bytes == pytest.approx(live_bytes, rel=1e-5)
    assert share.planned_bytes <= plan.totals.temp_bytes
    assert share.bound_bytes <= share.least_bytes <= share.planned_bytes
    assert sum(share.planned_by_source.values()) == share.planned_bytes
    assert sum(share.least_by_source.values()) == share.least_bytes


@pytest.mark.parametrize("name", DUMPS)
def test_every_order_is_one_that_the_program_can_run_in(name: str, goldens: Path) -> None:
    plan = open_dump(goldens / name).plan
    assert plan.module is not None
    graphs = TempGraphs(plan, plan.module)
    assert plan.module.entry_computation is not None
    graph = graphs.graph(plan.module.entry_computation, ())
    for order in orders(graph):
        assert order_is_valid(graph, order)
    assert not order_is_valid(graph, range(len(graph.names) - 1, -1, -1))


def test_values_that_wait_for_each_other_are_held_by_the_order() -> None:
    plan = plan_of_text(WIDE, {"a": 0, "b": 1, "c": 2, "d": 3})
    share = order_share(plan)
    assert share is not None
    assert (share.planned_bytes, share.least_bytes, share.held_bytes) == (8004, 4008, 3996)
    assert share.bound_bytes == 4004


def test_values_in_place_of_each_other_count_once() -> None:
    plan = plan_of_text(WIDE, {"a": 0, "b": 1, "c": 0, "d": 1})
    share = order_share(plan)
    assert share is not None
    assert (share.planned_bytes, share.least_bytes) == (8000, 8000)


def test_the_command_lists_source_lines(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = str(goldens / DUMPS[1])
    assert main(["show", dump, "--order"]) == 0
    printed = capsys.readouterr().out
    assert "138,428,424 B of temp are held only by the order of instructions" in printed
    assert "models/fsdp_mlp/model.py:52" in printed
    assert main(["show", dump, "--order", "--json"]) == 0
    order = json.loads(capsys.readouterr().out)["order"]
    assert order["held_bytes"] == order["planned_bytes"] - order["least_bytes"] == 138_428_424
    held = [row["planned_bytes"] - row["least_bytes"] for row in order["sources"]]
    assert sum(held) == order["held_bytes"]


def test_without_a_module_it_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "jaxlib-0.4.30/cpu"
    main(["show", str(path), "--order"])
    assert "order: " in capsys.readouterr().out
