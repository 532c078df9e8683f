"""The table of `xlapipe fit`, from rows that were made up: what fits, the largest, failures."""

import json
from typing import Any

import pytest

from xlapipe.compiling.fit import Fitted, Row, largest
from xlapipe.compiling.sweep import Axis, Combination, combinations
from xlapipe.errors import CompileError
from xlapipe.report.fit import fit_figures, print_fit

MEMORY, USABLE = 1_000_000, 750_000
AXES = [Axis("batch", (1, 64, 8)), Axis("seq", (2048, 32768))]
SECONDS = {"load": 1.0, "lower": 0.5, "compile": 7.25, "read": 0.25, "all": 9.0}


def fitted(temp: int, *, rematerialised: int = 0) -> Fitted:
    return Fitted(
        workload="step",
        topology="8x8",
        argument_bytes=400_000,
        output_bytes=8,
        temp_bytes=temp,
        device_memory_bytes=MEMORY,
        usable_bytes=USABLE,
        rematerialised=rematerialised,
        seconds=SECONDS,
    )


def rows_of(outcomes: dict[tuple[int, int], Any]) -> list[Row]:
    def outcome(found: Combination) -> Any:
        return outcomes[found.values["batch"], found.values["seq"]]

    return [Row(found, outcome(found)) for found in combinations("m:step", AXES)]


@pytest.fixture
def rows() -> list[Row]:
    return rows_of(
        {
            (1, 2048): fitted(1_000),
            (8, 2048): fitted(349_992),
            (64, 2048): fitted(349_993),
            (1, 32768): fitted(500_000, rematerialised=3),
            (8, 32768): fitted(600_000, rematerialised=12),
            (64, 32768): CompileError("step: the compiling process was ended by SIGKILL"),
        }
    )


def test_a_plan_fits_up_to_the_last_byte() -> None:
    exact, above = fitted(349_992), fitted(349_993)
    assert (exact.total_bytes, exact.headroom_bytes, exact.fits) == (USABLE, 0, True)
    assert (above.headroom_bytes, above.fits) == (-1, False)


def test_the_largest_is_of_the_first_axis_for_each_value_of_the_others(rows: list[Row]) -> None:
    short, long = largest(rows, AXES)
    assert short.row is not None
    assert (short.others, short.row.combination.values["batch"]) == ({"seq": 2048}, 8)
    assert not short.failed
    assert (long.others, long.row, long.failed) == ({"seq": 32768}, None, True)


def test_values_may_be_lists() -> None:
    lists = [Axis("dims", ([1, 2], [3])), Axis("options", ({"a": 1}, {}))]
    rows = [Row(found, fitted(1)) for found in combinations("m:step", lists)]
    answers = largest(rows, lists)
    assert [answer.others for answer in answers] == [{"options": {"a": 1}}, {"options": {}}]
    assert all(a.row is not None and a.row.combination.values["dims"] == [3] for a in answers)


def test_without_an_axis_there_is_no_largest(rows: list[Row]) -> None:
    assert largest(rows, []) == ()


def test_the_table_says_all_of_it(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    print_fit("m:step", "h200", rows, AXES, largest(rows, AXES))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "m:step on h200 (8x8): each device has 1,000,000 B, of which 750,000 B may be used"
    )
    table = [line.split() for line in said[2:8]]
    assert table[0][:8] == ["1", "2048", "400,000", "8", "1,000", "401,008", "348,992", "yes"]
    assert table[0][8:] == ["1.0", "0.5", "7.2", "0.2", "9.0"]
    # In the order of the values as they were given.
    assert table[2][:8] == ["64", "2048", "400,000", "8", "349,993", "750,001", "-1", "no"]
    assert table[1][-6] == "no*"
    assert table[3] == ["64", "32768", *["-"] * 5, "FAILED", *["-"] * 5]
    assert said[-2:] == [
        "with seq=2048: the largest batch that fits is 8",
        "with seq=32768: no batch fits; the smallest needs 150,008 B more (not all of them "
        "compiled)",
    ]
    assert "up to 12 instructions a second time" in "\n".join(said)
    assert "NCCL" in "\n".join(said)


def test_a_largest_that_may_not_be_the_largest_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    small = {point: fitted(1) for point in ((1, 2048), (8, 2048), (1, 32768), (64, 32768))}
    rows = rows_of({**small, (64, 2048): fitted(2), (8, 32768): CompileError("no")})
    print_fit("m:step", "h200", rows, AXES, largest(rows, AXES))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "with seq=2048: the largest batch that fits is 64, the largest asked for",
        "with seq=32768: the largest batch that fits is 64, the largest asked for (not all of "
        "them compiled)",
    ]


def test_columns_stand_below_each_other(
    rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    print_fit("m:step", "h200", rows, AXES, ())
    header, *table = capsys.readouterr().out.splitlines()[1:8]
    ends = {header.index(name) + len(name) for name in ("temp, B", "total, B", "fits")}
    for line in table:
        assert all(line[end - 1] != " " and line[end : end + 2] == "  " for end in ends), line


def test_json_holds_the_same_figures(rows: list[Row]) -> None:
    figures = json.loads(json.dumps(fit_figures("m:step", "h200", rows, largest(rows, AXES))))
    first, failed = figures["rows"][0], figures["rows"][3]
    assert first["values"] == {"batch": 1, "seq": 2048}
    assert first["reference"] == "m:step(batch=1, seq=2048)"
    assert (first["total_bytes"], first["headroom_bytes"], first["fits"]) == (
        401_008,
        348_992,
        True,
    )
    assert first["seconds"] == SECONDS
    assert (failed["fits"], "SIGKILL" in failed["error"]) == (None, True)
    assert figures["largest"] == [
        {"others": {"seq": 2048}, "values": {"batch": 8, "seq": 2048}, "some_failed": False},
        {"others": {"seq": 32768}, "values": None, "some_failed": True},
    ]


def test_a_table_of_failures_alone_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = combinations("m:step", [])
    print_fit("m:step", "h200", [Row(found, CompileError("no"))], [], ())
    assert capsys.readouterr().out.splitlines()[0] == "m:step on h200"
