"""`xlapipe choose`: rows, the chosen one, budgets and bad input."""

import json
from pathlib import Path

import pytest

import xlapipe
from xlapipe import XlapipeError
from xlapipe.choosing import compiles as compiles_module
from xlapipe.choosing.choose import choose
from xlapipe.cli import main
from xlapipe.sizing.fit import fit

FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


def test_values_are_ranked_by_time_per_item_and_compared_with_the_limit(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    page = tmp_path / "curve.html"
    arguments = ["choose", "choose_steps:workload", "--vary", "batch=512,4096,64"]
    arguments += ["--maximise", "batch", "--limit", "100000000", "--html", str(page)]
    code = main([*arguments, "--jobs", "2", "--json"])
    figures = json.loads(capsys.readouterr().out)
    rows = {row["arguments"]["batch"]: row for row in figures["rows"]}
    assert code == 0
    assert set(rows) == {64, 512, 4096}
    assert not rows[4096]["fits"] and rows[4096]["total_bytes"] > 100_000_000
    assert [row["arguments"]["batch"] for row in figures["rows"] if row["chosen"]] == [512]
    for row in rows.values():
        assert row["predicted_low_seconds"] < row["predicted_seconds"]
        assert row["predicted_seconds"] < row["predicted_high_seconds"]
        assert row["change"] is None and row["code"] is None
        assert row["fits"] == (row["total_bytes"] <= 100_000_000)
    per_item = [row["predicted_seconds_per_item"] for row in figures["rows"]]
    assert per_item == sorted(per_item)
    text = page.read_text(encoding="utf-8")
    assert text.count("<circle") == 3 and text.count("<circle class=chosen") == 1
    assert f"{rows[512]['total_bytes']:,} B" in text


def test_a_limit_that_nothing_meets_states_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["choose", "choose_steps:forward(batch=8)", "--limit", "100"]) == 1
    output = capsys.readouterr()
    assert "nothing fits" in output.err and "more than 100 B" in output.err


def test_a_budget_of_compiles_and_an_interrupt_keep_the_rows_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = xlapipe.choose("choose_steps:forward", {"batch": [8, 16]}, compiles=1)
    assert [row["arguments"] for row in rows] == [{"batch": 8}]

    def interrupted(*args: object, **kwargs: object) -> None:
        fit(*args, **kwargs)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(compiles_module, "fit", interrupted)
    choice = choose("choose_steps:forward", {"batch": [8]})
    assert choice.interrupted and [row.chosen for row in choice.rows] == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maximise": "rows"}, "--maximise rows: expected an argument with positive numbers"),
        ({"limit": -1}, "--limit -1"),
        ({"budget": 0}, "--budget 0"),
        ({"target": "h2000"}, "h2000"),
    ],
)
def test_bad_input_is_one_error(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(XlapipeError, match=message):
        xlapipe.choose("choose_steps:forward", **arguments)  # type: ignore[arg-type]
