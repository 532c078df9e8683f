"""What a program asks of a plan, and of two: `fits`, `mfu`, copies, modules, `xlapipe.diff`."""

from dataclasses import replace
from pathlib import Path

import pytest

import xlapipe
from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main
from xlapipe.errors import XlapipeError


@pytest.fixture(scope="module")
def step() -> Path:
    return Path("hlo_dumps/qwen3-step").resolve() / f"h200-cublas-jax{GOLDEN_JAXLIB}"


@pytest.fixture(scope="module")
def plan(step: Path) -> xlapipe.StepPlan:
    opened = xlapipe.read(step)
    assert isinstance(opened, xlapipe.StepPlan)
    return opened


def test_a_plan_fits_unless_it_is_larger_or_was_refused(plan: xlapipe.StepPlan) -> None:
    assert plan.fits is True
    assert plan.mfu == pytest.approx(plan.figures["time"]["prediction"]["mfu"])
    assert plan.opened.dump is not None
    refused = replace(plan.opened.dump.manifest, refused="out of memory")
    program = replace(plan.opened.dump, facts=refused)
    assert xlapipe.StepPlan(replace(plan.opened, program=program)).fits is False


def test_copies_are_a_table(plan: xlapipe.StepPlan) -> None:
    assert [row["copied_bytes"] for row in plan.table("copies")] == [
        copy.copied_bytes for copy in plan.copies()
    ]


def test_modules_are_scopes_and_classes(
    plan: xlapipe.StepPlan, step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {row["module"]: row for row in plan.table("modules")}
    # nnx names no scopes: its classes are on the call stack.
    assert {"layers_0/mlp", "layers_1/attention", "Attention", "MLP", "Block"} <= rows.keys()
    inside = [rows[f"layers_{layer}/mlp"] for layer in range(2)]
    for figure in ("kernels", "peak_bytes"):
        assert rows["MLP"][figure] == sum(row[figure] for row in inside)
    predicted = sum(row["predicted_seconds"] for row in inside)
    assert rows["MLP"]["predicted_seconds"] == pytest.approx(predicted)
    assert rows["layers_0"]["peak_bytes"] >= rows["layers_0/mlp"]["peak_bytes"] > 0
    whole = plan.time.predicted_kernel_seconds
    assert whole is not None and predicted < whole
    assert main(["show", str(step), "mlp"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mlp: 3 modules\n")
    assert f"{rows['MLP']['peak_bytes']:,} B at the peak, 6 kernels" in printed.splitlines()[1]


def test_the_difference_of_two_plans_is_that_of_the_command(
    plan: xlapipe.StepPlan, step: Path
) -> None:
    donated = step.parents[1] / "qwen3-step-donated" / step.name
    difference = xlapipe.diff(plan, donated)
    assert not difference.same
    assert "less memory" in difference.verdict and "faster" in difference.verdict
    rows = {row["figure"]: row for row in difference.table()}
    assert rows["total_bytes"]["a"] == plan.total_allocation_bytes
    assert rows["donated_in_place"] == {"figure": "donated_in_place", "a": "0 of 0", "b": "1 of 1"}
    assert "total, B" in repr(difference) and "  time: " in repr(difference)
    assert "<li>" in difference._repr_html_()
    same = xlapipe.diff(plan, step)
    assert (same.same, same.verdict) == (True, "the same plan")
    inductor = Path("tests/inductor/data/torch-2.13-cpu-dropout/forward0").resolve()
    with pytest.raises(XlapipeError, match="one of torch Inductor; fix: `xlapipe diff A B`"):
        xlapipe.diff(plan, inductor)
