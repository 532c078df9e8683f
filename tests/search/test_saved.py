"""`xlapipe saved`: what the forward pass keeps, names that match nothing, what frees bytes."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.folders import STEPS
from xlapipe import XlapipeError
from xlapipe.cli import main
from xlapipe.compile.lowering.forward_graph import ForwardGraph
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.dump.dump import open_dump
from xlapipe.plans.labels import Labels
from xlapipe.plans.occupancy import Occupancy
from xlapipe.plans.purposes import Purpose, Uses
from xlapipe.search.choosing.saved import freeing

pytestmark = pytest.mark.jax

LAYERS, ROWS, WIDTH = 4, 512, 256
HIDDEN_BYTES = LAYERS * ROWS * 4 * WIDTH * 4
# Of the plan; the policy that leaves out so many bytes of the forward pass frees fewer.
FREE_BYTES = 9_000_000
Output = tuple[int, dict[str, Any], str]


@pytest.fixture(scope="module", autouse=True)
def in_folder() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        yield


@pytest.fixture
def scanned(in_folder: None, capsys: pytest.CaptureFixture[str]) -> Output:
    policy = "jax.checkpoint_policies.save_only_these_names('hidden', 'atn')"
    code = main(["saved", "choose_steps:workload", "--policy", policy, "--json"])
    output = capsys.readouterr()
    return code, json.loads(output.out), output.err


def test_what_a_scan_keeps_and_a_name_that_no_value_has(scanned: Output) -> None:
    code, figures, errors = scanned
    assert code == 1
    (hidden,) = [row for row in figures["rows"] if row["name"] == "hidden"]
    assert hidden["size_bytes"] == hidden["peak_bytes"] == HIDDEN_BYTES
    assert hidden["count"] == 1 and hidden["why"] == "named in each iteration of a loop"
    line = hidden["source"].rpartition(":")[2]
    text = (STEPS / "choose_steps.py").read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert "checkpoint_name" in text
    primitives = {row["primitive"] for row in figures["rows"]}
    assert {"name", "dot_general", "logistic", "input of an iteration"} <= primitives
    at_peak = sum(row["peak_bytes"] or 0 for row in figures["rows"])
    assert HIDDEN_BYTES < at_peak < figures["total_bytes"]
    weights_bytes = 2 * LAYERS * WIDTH * 4 * WIDTH * 4
    assert (figures["arguments"], figures["arguments_bytes"]) == (2, weights_bytes)

    assert "no value has the name 'atn'" in errors and "'hidden', so" not in errors
    assert figures["unmatched"] == ["atn"] and figures["not_offloaded"] == {}
    assert figures["freed"] == []


# What the plan keeps of each layer by hand: XLA computes the rest again inside of kernels.
WIDE, NARROW = ROWS * 4 * WIDTH * 4, ROWS * WIDTH * 4
# XLA of jax 0.12 keeps one more number of four bytes where gradients are accumulated.
KEPT_SINCE_0_12 = 4 if jax.__version_info__ >= (0, 12) else 0


@pytest.mark.parametrize(
    ("workload", "by_hand"),
    [
        # Each layer keeps the product, its logistic, what has the name before it is named and
        # after, the input and the factor of the gradient of tanh.
        ("choose_steps:workload", LAYERS * (4 * WIDE + 2 * NARROW)),
        ("choose_steps:nested_workload", LAYERS * (4 * WIDE + 2 * NARROW)),
        # Two layers of a quarter of the rows; the gradients are carried along, and not saved.
        (
            "choose_steps:named_workload(microbatches=4, offload=False)",
            2 * (4 * WIDE + 2 * NARROW) // 4 + KEPT_SINCE_0_12,
        ),
    ],
)
def test_show_and_saved_print_the_same_bytes(
    workload: str, by_hand: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["dump", workload, "--out", str(tmp_path)]) == 0
    (dump,) = tmp_path.glob("*/*")
    capsys.readouterr()
    assert main(["saved", workload, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    program = open_dump(dump)
    uses = Uses(Occupancy(program.plan), Labels(program))
    peak = uses.occupancy.peak_position
    counted = [v for v in uses.occupancy.contents(peak) if uses.of(v).purpose is Purpose.SAVED]
    assert sum(value.counted_bytes for value in counted) == figures["saved_bytes"] == by_hand
    if "nested" in workload:
        (hidden,) = [row for row in figures["rows"] if row["name"] == "hidden"]
        assert hidden["size_bytes"] == hidden["peak_bytes"] == HIDDEN_BYTES


@pytest.mark.slow
def test_what_frees_bytes_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["saved", "choose_steps:workload", "--free", str(FREE_BYTES), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["freed"][0]["freed_bytes"] >= FREE_BYTES
    assert "policy" in figures["freed"][0]["code"]


def test_what_a_python_loop_keeps_beside_an_offload_that_stays_on_the_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["saved", "choose_steps:named_workload(scan=False)"]) == 1
    output = capsys.readouterr()
    assert "'hidden' stays on the device: the policy offloads 2 values" in output.err
    (hidden,) = [line for line in output.out.splitlines() if "hidden float32" in line]
    assert "moved to the host by a policy" in hidden and " no " in hidden
    assert "The backward pass also reads 1 of the step's arguments" in output.out


def test_a_step_without_a_gradient_and_too_many_bytes_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["saved", "choose_steps:forward(batch=8)"]) == 2
    assert "the step has no gradient" in capsys.readouterr().err
    assert main(["saved", "choose_steps:workload", "--policy", "policies.dots_saveable"]) == 2
    assert "--policy policies.dots_saveable: expected names" in capsys.readouterr().err
    with pytest.raises(XlapipeError, match="the step has no gradient"):
        freeing("choose_steps:forward", "h200", CompileSettings(), ForwardGraph((), ()), 10)


def test_jaxs_next_checkpoint_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It keeps values by name alone: a policy that names others would recompute everything."""
    step = (STEPS / "choose_steps.py").read_text()
    text = f"{step}\njax.config.update('jax_remat3', True)\n"
    (tmp_path / "next_step.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for name, *options in (["saved"], ["choose", "--remat"]):
        assert main([name, "next_step:workload", *options]) == 2
        assert "jax_remat3 is on" in capsys.readouterr().err
    assert main(["check", "next_step:workload"]) == 0
