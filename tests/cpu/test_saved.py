"""`xlapipe saved`: what the forward pass keeps, names that match nothing, what frees bytes."""

import json
from pathlib import Path

import pytest

from xlapipe.cli import main

FOLDER = Path(__file__).parent
LAYERS, ROWS, WIDTH = 4, 512, 256
HIDDEN_BYTES = LAYERS * ROWS * 4 * WIDTH * 4


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


@pytest.mark.parametrize("scan", [True, False])
def test_what_is_kept_is_listed_with_its_line_and_bytes(
    scan: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["saved", f"choose_steps:workload(scan={scan})", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    (hidden,) = [row for row in figures["rows"] if row["name"] == "hidden"]
    assert hidden["size_bytes"] == hidden["peak_bytes"] == HIDDEN_BYTES
    assert hidden["count"] == (1 if scan else LAYERS)
    line = hidden["source"].rpartition(":")[2]
    text = (FOLDER / "choose_steps.py").read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert "checkpoint_name" in text
    primitives = {row["primitive"] for row in figures["rows"]}
    assert {"name", "dot_general", "logistic"} <= primitives
    assert ("input of an iteration" in primitives) == scan
    at_peak = sum(row["peak_bytes"] or 0 for row in figures["rows"])
    assert HIDDEN_BYTES < at_peak < figures["total_bytes"]


def test_a_name_that_no_value_has_and_what_frees_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = "jax.checkpoint_policies.save_only_these_names('hidden', 'atn')"
    free = ["--free", str(2 * HIDDEN_BYTES)]
    assert main(["saved", "choose_steps:workload", "--policy", policy, *free, "--json"]) == 1
    output = capsys.readouterr()
    figures = json.loads(output.out)
    assert "no value has the name 'atn'" in output.err and "'hidden', so" not in output.err
    assert figures["unmatched"] == ["atn"]
    assert figures["freed"][0]["freed_bytes"] >= 2 * HIDDEN_BYTES
    assert "policy" in figures["freed"][0]["code"]


def test_a_step_without_a_gradient_and_too_many_bytes_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["saved", "choose_steps:forward(batch=8)"]) == 2
    assert "the step has no gradient" in capsys.readouterr().err
    assert main(["saved", "choose_steps:workload", "--free", "1000000000"]) == 2
    assert "--free 1000000000: a policy decides about" in capsys.readouterr().err
