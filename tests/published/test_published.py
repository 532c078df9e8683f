"""The records of published runs, the page that shows them, and one prediction made again."""

from pathlib import Path

import pytest

from tests.published.__main__ import picture, table
from tests.published.runs import PICTURE, compared, compile_and_predict, runs

ROOT = Path(__file__).parents[2]


def test_runs_are_many_named_once_and_a_third_is_held_out() -> None:
    items = runs()
    assert len({item.name for item in items}) == len(items)
    assert {item.run.name for item in compared()} == {item.name for item in items}
    assert len(items) >= 25 and sum(item.hosts > 1 for item in items) >= 8
    assert sum(item.field != "language" for item in items) >= 6
    assert [item.held_out for item in items] == [n % 3 == 2 for n in range(len(items))]
    for item in items:
        gpus = item.args.get("data", 1) * item.args.get("fsdp", 1)
        assert gpus % item.hosts == 0 and len(item.commit) >= 7, item.name


def test_a_figure_is_turned_into_the_seconds_of_a_step() -> None:
    seconds = {item.name: item.seconds for item in runs()}
    # 256 sequences at 1,877.2 a second; 715.2 TFLOP of each GPU at 492 TFLOP/s; 391.21 ms.
    assert seconds["GPT 126M, 64 A100, bf16, 23.10"] == pytest.approx(0.13637, rel=1e-4)
    assert seconds["llama2-7b, 8 H100, A3"] == pytest.approx(1.4537, rel=1e-4)
    assert seconds["Stable Diffusion encoder training, 1 A100"] == pytest.approx(0.39121)


def test_the_page_has_the_largest_errors_as_printed() -> None:
    page = (ROOT / "docs/published.md").read_text(encoding="utf-8")
    assert table(compared(), least_error=0.1) in page
    assert PICTURE.read_text(encoding="utf-8") == picture(compared())


@pytest.mark.jax
@pytest.mark.exhaustive
def test_a_recorded_prediction_is_made_again() -> None:
    (item,) = (item for item in compared() if item.run.name.startswith("CartPole"))
    again = compile_and_predict(item.run)
    assert again.seconds == pytest.approx(item.predicted.seconds, rel=0.02)
