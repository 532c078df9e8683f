"""The first table of `xlapipe choose`: what the forward pass keeps for the backward pass."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.compile.pipeline import compile_dump
from xlapipe.dump.dump import Dump
from xlapipe.plans.labels import Labels
from xlapipe.plans.occupancy import Occupancy
from xlapipe.plans.purposes import Purpose, Uses
from xlapipe.registry import find_workload
from xlapipe.search.candidate import Candidate, job_of
from xlapipe.search.choosing.compiles import forward_graph_at
from xlapipe.search.choosing.saved import SavedValues, saved_values

pytestmark = pytest.mark.jax

LAYERS, ROWS, WIDTH = 4, 512, 256
HIDDEN_BYTES = LAYERS * ROWS * 4 * WIDTH * 4


@pytest.fixture(scope="module", autouse=True)
def in_folder() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        yield


def kept(workload: str, folder: Path) -> tuple[Dump, SavedValues | None]:
    note = folder / "graph.json"
    candidate = Candidate(find_workload(workload), target="h200")
    dump = compile_dump(job_of(candidate, CompileSettings(), record=str(note)), None).dump
    return dump, saved_values(dump, forward_graph_at(note), "h200")


def test_what_a_scan_keeps_is_printed_and_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", "choose_steps:workload", "--compiles", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [row["change"] for row in figures["rows"]] == [None] and figures["left_out"] > 3
    saved = figures["saved"]
    (hidden,) = [row for row in saved["rows"] if row["name"] == "hidden"]
    assert hidden["size_bytes"] == hidden["peak_bytes"] == HIDDEN_BYTES
    assert hidden["count"] == 1 and hidden["why"] == "named in each iteration of a loop"
    line = hidden["source"].rpartition(":")[2]
    text = (STEPS / "choose_steps.py").read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert "checkpoint_name" in text
    primitives = {row["primitive"] for row in saved["rows"]}
    assert {"name", "dot_general", "logistic", "input of an iteration"} <= primitives
    at_peak = sum(row["peak_bytes"] or 0 for row in saved["rows"])
    assert HIDDEN_BYTES < at_peak < saved["total_bytes"]
    weights_bytes = 2 * LAYERS * WIDTH * 4 * WIDTH * 4
    assert (saved["arguments"], saved["arguments_bytes"]) == (2, weights_bytes)


# What the plan keeps of each layer by hand: XLA computes the rest again inside of kernels.
WIDE, NARROW = ROWS * 4 * WIDTH * 4, ROWS * WIDTH * 4
# XLA of jax 0.12 keeps one more number of four bytes where gradients are accumulated.
KEPT_SINCE_0_12 = 4 if jax.__version_info__ >= (0, 12) else 0


@pytest.mark.slow
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
def test_as_many_bytes_as_show_prints(workload: str, by_hand: int, tmp_path: Path) -> None:
    dump, values = kept(workload, tmp_path)
    assert values is not None
    uses = Uses(Occupancy(dump.plan), Labels(dump))
    peak = uses.occupancy.peak_position
    counted = [v for v in uses.occupancy.contents(peak) if uses.of(v).purpose is Purpose.SAVED]
    assert sum(value.counted_bytes for value in counted) == values.saved_bytes == by_hand
    if "nested" in workload:
        (hidden,) = [row for row in values.rows if row.name == "hidden"]
        assert hidden.size_bytes == hidden.peak_bytes == HIDDEN_BYTES


def test_what_a_python_loop_moves_to_the_host(
    tmp_path: Path,
) -> None:
    _, values = kept("choose_steps:named_workload(scan=False)", tmp_path)
    assert values is not None
    (hidden,) = [row for row in values.rows if row.name == "hidden"]
    assert "moved to the host by a policy" in hidden.why and hidden.peak_bytes is None
    assert values.arguments == 1


def test_a_step_without_a_gradient_keeps_nothing(tmp_path: Path) -> None:
    assert kept("choose_steps:forward(batch=8)", tmp_path)[1] is None


@pytest.mark.slow
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
    assert main(["choose", "next_step:workload", "--remat"]) == 2
    assert "jax_remat3 is on" in capsys.readouterr().err
    assert main(["check", "next_step:workload"]) == 0
