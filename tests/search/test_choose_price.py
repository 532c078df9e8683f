"""Prices of `xlapipe choose`: what a million items cost, and what is refused."""

from dataclasses import replace

import pytest

from tests.shared.sample_records import planned, predicted
from xlapipe.cli import main
from xlapipe.cli.choose_table import choice_lines
from xlapipe.registry import find_workload
from xlapipe.search.candidate import Candidate
from xlapipe.search.choosing.choose import Choice
from xlapipe.search.rows import Row

MEMORY = planned(predicted=predicted(1e-3, 8e-4, 2e-3))
ROW = Row(Candidate(find_workload("step:train"), {}, "h200"), MEMORY, items=8.0)


def test_a_row_costs_its_seconds_its_devices_and_its_price() -> None:
    row = ROW
    seconds = row.seconds_per_item
    assert seconds is not None and row.devices == 1
    assert row.cost_per_million is None
    priced = replace(row, price=3.6, outcome=replace(row.memory, topology="2x8"))
    assert priced.devices == 16
    assert priced.cost_per_million == pytest.approx(1e6 * seconds * 16 * 3.6 / 3600)
    assert replace(row, price=3.6, items=2 * (row.items or 1)).cost_per_million == pytest.approx(
        1e6 * seconds / 2 * 3.6 / 3600
    )


def test_the_table_has_network_mfu_and_cost() -> None:
    time = replace(
        predicted(1e-3, 8e-4, 2e-3),
        network="hgx-400g: 8 GPUs (assumed; --network states another)",
        mfu=0.5,
    )
    row = replace(ROW, price=2.9, outcome=replace(MEMORY, predicted=time, topology="1x8"))
    lines = [
        line.plain for line in choice_lines(Choice(workload="a", maximise="batch", rows=(row,)))
    ]
    text = "\n".join(lines)
    assert "cost of 1M items" in lines[1] and "MFU" in lines[1]
    assert "50.0 %" in lines[2]
    assert "Network hgx-400g: 8 GPUs (assumed" in text
    assert "than the chosen one, tried on forms for one GPU only." in text
    assert "Cost at 2.9 per device and hour, for 8 devices." in text


def test_the_chosen_forms_of_several_targets_are_compared() -> None:
    fast = replace(MEMORY, predicted=replace(predicted(1e-3, 8e-4, 2e-3), network="efa: 8 GPUs"))
    slow = replace(MEMORY, predicted=predicted(4e-3, 3e-3, 6e-3))
    rows = (
        replace(ROW, outcome=fast, price=2.0, chosen=True),
        replace(
            ROW,
            candidate=replace(ROW.candidate, target="b200"),
            outcome=slow,
            price=1.0,
            chosen=True,
        ),
    )
    choice = Choice(workload="a", maximise="batch", rows=rows)
    lines = [line.plain for line in choice_lines(choice)]
    start = lines.index("The chosen form of each target:")
    heading, first, second = lines[start + 1 : start + 4]
    assert heading.split()[-5:] == ["1M", "items", "devices", "target", "network"]
    assert first.split() == [
        *("1.000", "ms", "800.00", "µs", "to", "2.000", "ms", "(9", "in", "10)"),
        *("8", "125.00", "µs"),
        *("-", "0.06944", "1", "h200", "efa"),
    ]
    assert second.split()[-3:] == ["0.1389", "1", "b200"]
    alone = choice_lines(replace(choice, rows=rows[:1]))
    assert not any("each target" in line.plain for line in alone)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("h100", "expected NAME=PRICE with a price above 0"),
        ("h100=cheap", "expected NAME=PRICE with a price above 0"),
        ("h100=-1", "expected NAME=PRICE with a price above 0"),
        ("h100=nan", "expected NAME=PRICE with a price above 0"),
        ("b200=3", "expected one of the targets h100_sxm, found b200"),
        ("x100=3", "unknown target 'x100'"),
        ("h100=2,H100=3", "h100_sxm has two prices"),
    ],
)
def test_a_wrong_price_is_refused(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["choose", "a:b", "--target", "h100_sxm", "--price", given]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", "a:b", "--network", "hgx"]) == 2
    assert "expected one of hgx-400g" in capsys.readouterr().err
