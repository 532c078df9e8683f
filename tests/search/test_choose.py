"""`xlapipe choose`: rows, the chosen one, budgets and bad input."""

import json
import re

import pytest

import xlapipe
from tests.folders import STEPS
from xlapipe import XlapipeError
from xlapipe.cli import main
from xlapipe.search.choosing import compiles as compiles_module
from xlapipe.search.choosing.choose import choose
from xlapipe.search.rows import compile_rows

pytestmark = pytest.mark.jax


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STEPS)


def test_values_are_ranked_by_time_per_item_and_compared_with_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["choose", "choose_steps:forward", "--vary", "batch=512,8192,64"]
    arguments += ["--maximise", "batch", "--memory", "60000000"]
    code = main([*arguments, "--jobs", "2", "--json"])
    figures = json.loads(capsys.readouterr().out)
    rows = {row["arguments"]["batch"]: row for row in figures["rows"]}
    assert code == 0
    assert set(rows) == {64, 512, 8192}
    assert not rows[8192]["fits"] and rows[8192]["total_bytes"] > 60_000_000
    assert [row["arguments"]["batch"] for row in figures["rows"] if row["chosen"]] == [512]
    for row in rows.values():
        assert row["predicted_low_seconds"] < row["predicted_step_seconds"]
        assert row["predicted_step_seconds"] < row["predicted_high_seconds"]
        assert row["change"] is None and row["code"] is None
        assert row["fits"] == (row["total_bytes"] <= 60_000_000)
    per_item = [row["predicted_seconds_per_item"] for row in figures["rows"]]
    assert per_item == sorted(per_item)


def test_a_limit_that_nothing_meets_states_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["choose", "choose_steps:forward(batch=8)", "--memory", "100"]) == 1
    output = capsys.readouterr()
    assert "nothing fits" in output.err and "more than 100 B" in output.err


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("without_gradient", "the step has no gradient"),
        ("without_a_place_for_a_policy", "there is no place for a policy; fix: call"),
        ("hidden_residuals", "residuals that a jax.custom_vjp hides; fix: leave"),
        pytest.param("donated_residuals", "its donation has no effect", marks=pytest.mark.slow),
        ("other_loop_in_each_trace", "traced: once .*, then .* compared; fix: let"),
        pytest.param(
            "other_constant_in_each_process",
            "another program each time .* compared; fix: let",
            marks=pytest.mark.slow,
        ),
        (
            "side_effect",
            "debug_print at choose_refused_steps.py:.* happen twice",
        ),
    ],
)
def test_a_step_that_no_policy_serves_is_one_error(
    step: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["choose", f"choose_refused_steps:{step}", "--remat"]) == 2
    output = capsys.readouterr()
    (error,) = [line for line in output.err.splitlines() if "error:" in line]
    assert re.search(message, error) and "; fix: " in error
    assert output.out == ""


@pytest.mark.slow
def test_a_side_effect_outside_of_the_scan_leaves_policies_for_its_body() -> None:
    choice = choose("choose_refused_steps:side_effect(scan=True)", remat=True, compiles=2)
    (change,) = [row.candidate.change for row in choice.rows if row.candidate.change is not None]
    assert "(scan bodies)" in change.text
    # After the note that a call of a library, the side effect, has no time.
    assert [("would happen twice" in note) for note in choice.notes[:2]] == [False, True]


def test_a_budget_of_compiles_and_an_interrupt_keep_the_rows_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = xlapipe.choose("choose_steps:forward", {"batch": [8, 16]}, compiles=1)
    assert [row["arguments"] for row in rows] == [{"batch": 8}]

    def interrupted(*args: object, **kwargs: object) -> None:
        compile_rows(*args, **kwargs)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(compiles_module, "compile_rows", interrupted)
    choice = choose("choose_steps:forward", {"batch": [8]})
    assert choice.interrupted and [row.chosen for row in choice.rows] == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maximise": "rows"}, "--maximise rows: expected an argument with positive numbers"),
        ({"memory": -1}, "--memory -1: expected a share"),
        ({"budget": 0}, "--budget 0"),
        ({"target": "h2000"}, "h2000"),
    ],
)
def test_bad_input_is_one_error(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(XlapipeError, match=message):
        xlapipe.choose("choose_steps:forward", **arguments)  # type: ignore[arg-type]
