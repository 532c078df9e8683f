"""The table of `xlapipe fit`, from constructed rows: what fits, the largest value, failures."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.shared import sample_records
from tests.shared.sample_records import at_least, predicted
from xlapipe.cli.fit_table import fit_figures, fit_lines
from xlapipe.errors import CompileError
from xlapipe.plans.usable_memory import OutsidePlan
from xlapipe.report.records import plain_data
from xlapipe.search.candidate import Candidate
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.rows import Row, largest
from xlapipe.search.sweep import Axis, combinations
from xlapipe.time.recomputed import Recomputation

USABLE = 750_000
AXES = [Axis("batch", (1, 64, 8)), Axis("seq", (2048, 32768))]
SECONDS = {"load": 1.0, "lower": 0.5, "compile": 7.25, "read": 0.25, "all": 9.0}


def planned(temp: int, *, rematerialised: int = 0, host: int = 0) -> PlannedMemory:
    return sample_records.planned(
        temp,
        usable_bytes=USABLE,
        topology="8x8",
        argument_bytes=400_000,
        output_bytes=8,
        host_bytes=host,
        recomputation=Recomputation(rematerialised) if rematerialised else None,
        seconds=SECONDS,
    )


def lines_of(rows: list[Row], axes: list[Axis], best: Any = None) -> list[str]:
    """The printed lines; by default with the largest values that fit."""
    best = largest(rows, axes) if best is None else best
    return [line.plain for line in fit_lines("m:step", "h200", rows, axes, best)]


def rows_of(outcomes: dict[tuple[int, int], Any]) -> list[Row]:
    def outcome(point: Candidate) -> Any:
        return outcomes[point.values["batch"], point.values["seq"]]

    return [Row(point, outcome(point)) for point in combinations("m:step", AXES)]


@pytest.fixture
def rows() -> list[Row]:
    return rows_of(
        {
            (1, 2048): planned(1_000),
            (8, 2048): planned(349_992),
            (64, 2048): planned(349_993),
            (1, 32768): planned(500_000, rematerialised=3),
            (8, 32768): planned(600_000, rematerialised=12),
            (64, 32768): CompileError("step: the compiling process was ended by SIGKILL"),
        }
    )


def test_a_plan_fits_up_to_the_last_byte() -> None:
    exact, above = planned(349_992), planned(349_993)
    assert (exact.total_bytes, exact.headroom_bytes, exact.fits) == (USABLE, 0, True)
    assert (above.headroom_bytes, above.fits) == (-1, False)


def test_the_largest_is_of_the_first_axis_for_each_value_of_the_others(rows: list[Row]) -> None:
    short, long = largest(rows, AXES)
    assert short.row is not None
    assert (short.others, short.row.candidate.values["batch"]) == ({"seq": 2048}, 8)
    assert not short.failed
    assert (long.others, long.row, long.failed) == ({"seq": 32768}, None, True)


def test_values_may_be_lists() -> None:
    lists = [Axis("dims", ([1, 2], [3])), Axis("options", ({"a": 1}, {}))]
    rows = [Row(point, planned(1)) for point in combinations("m:step", lists)]
    answers = largest(rows, lists)
    assert [answer.others for answer in answers] == [{"options": {"a": 1}}, {"options": {}}]
    assert all(a.row is not None and a.row.candidate.values["dims"] == [3] for a in answers)


def test_without_an_axis_there_is_no_largest(rows: list[Row]) -> None:
    assert largest(rows, []) == ()


def test_the_table(rows: list[Row]) -> None:
    lines = lines_of(rows, AXES)
    assert lines[0] == (
        "m:step on h200 (8x8): 976.6 KiB of memory per device, 732.4 KiB (750,000 B) usable"
    )
    table = [re.split(" {2,}", line.strip()) for line in lines[2:8]]
    assert table[0][:4] == ["1", "2048", "390.6 KiB", "8 B"]
    assert table[0][4:] == ["1,000 B", "391.6 KiB", "340.8 KiB", "yes"]
    # In the order in which the values were given.
    assert table[2][4:] == ["341.8 KiB", "732.4 KiB", "-1 B", "no"]
    assert table[1][-1] == "no*"
    assert table[3] == ["64", "32768", *["-"] * 5, "FAILED"]
    assert lines[-2:] == [
        "with seq=2048: the largest batch that fits is 8",
        "with seq=32768: no batch fits; the smallest needs 150,008 B more; some compiles failed",
    ]
    assert "XLA recomputes to fit: 1.0 MiB with 12 instructions more" in "\n".join(lines)
    assert "NCCL" in "\n".join(lines)


def test_a_margin_that_is_smaller_than_the_error_is_marked(rows: list[Row]) -> None:
    basis, lock = "predicted tuning, 8 known", {"known": 8, "nearest": 2, "default": 1}
    unsure = replace(planned(349_992 - 2_000), error_bytes=2_048, basis=basis, predicted_lock=lock)
    sure = replace(unsure, error_bytes=2_000)
    points = [row.candidate for row in rows[:2]]
    lines = lines_of([Row(points[0], unsure), Row(points[1], sure)], AXES)
    cells = [re.split(" {2,}", line.strip())[-2:] for line in lines[2:4]]
    assert cells == [["1.95 KiB ± 2.00 KiB", "yes?"], ["1.95 KiB ± 1.95 KiB", "yes"]]
    certain = replace(planned(0), usable_bytes=400_007, error_bytes=2_048)  # less than arguments
    assert (certain.headroom_bytes, certain.fits_text) == (-1, "no")
    text = "\n".join(lines)
    assert "Predicted tuning: results that the device's tuner would probably give." in text
    assert "±: 9 of 10 programs recorded on NVIDIA GPUs differ" in text
    assert "?: the margin is smaller than that; fix: a lock of the device" in text
    first = fit_figures("m:step", "h200", [Row(points[0], unsure)], ())["rows"][0]
    assert (first["error_bytes"], first["basis"]) == (2_048, basis)


def test_a_predicted_lock_is_stated_also_where_its_error_is_small(rows: list[Row]) -> None:
    plan = replace(planned(1_000), error_bytes=10, predicted_lock={"nearest": 3})
    text = "\n".join(lines_of([Row(rows[0].candidate, plan)], AXES))
    assert "Predicted tuning: " in text
    assert "±" not in text


def test_the_title_states_the_memory_that_a_share_is_taken_of(rows: list[Row]) -> None:
    visible = replace(planned(1), outside=OutsidePlan(visible_bytes=900_000), usable_bytes=675_000)
    title = lines_of([Row(rows[0].candidate, visible)], AXES)[0]
    assert title.endswith("878.9 KiB of memory per device, 659.2 KiB (675,000 B) usable")


def test_host_memory_is_a_column_of_its_own_and_not_in_the_total(rows: list[Row]) -> None:
    assert "host" not in "\n".join(lines_of(rows, AXES))
    point = rows[0].candidate
    with_host = [Row(point, planned(1_000, host=5_000_000)), rows[3]]
    lines = lines_of(with_host, AXES, ())
    header = lines[1].split()
    assert header.index("host") == header.index("headroom") + 1
    assert re.split(" {2,}", lines[2].strip())[-2] == "4.77 MiB"
    assert lines[3].split().count("-") == 6
    assert "up to 5,000,000 B; not in the total" in "\n".join(lines)
    (first, _) = fit_figures("m:step", "h200", with_host, ())["rows"]
    assert (first["host_bytes"], first["total_bytes"], first["fits"]) == (5_000_000, 401_008, True)


def test_a_largest_value_with_failed_compiles_is_marked() -> None:
    small = {point: planned(1) for point in ((1, 2048), (8, 2048), (1, 32768), (64, 32768))}
    rows = rows_of({**small, (64, 2048): planned(2), (8, 32768): CompileError("no")})
    assert lines_of(rows, AXES)[-2:] == [
        "with seq=2048: the largest batch that fits is 64 (the largest value given)",
        "with seq=32768: the largest batch that fits is 64 (the largest value given); "
        "some compiles failed",
    ]


def test_columns_are_aligned(rows: list[Row]) -> None:
    header, *table = lines_of(rows, AXES, ())[1:8]
    ends = {header.index(name) + len(name) for name in ("temp", "total", "fits")}
    for line in table:
        assert all(line[end - 1] != " " and line[end : end + 2] in ("  ", "") for end in ends), line


def test_json_holds_the_same_figures(rows: list[Row]) -> None:
    figures = plain_data(fit_figures("m:step", "h200", rows, largest(rows, AXES)))
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


def test_the_title_of_a_table_of_failures() -> None:
    (point,) = combinations("m:step", [])
    assert lines_of([Row(point, CompileError("no"))], [])[0] == "m:step on h200"


def test_a_plan_that_the_compiler_refused_does_not_fit() -> None:
    refused = replace(planned(1_000), refused=True)
    assert not refused.fits
    rows = [Row(point, refused) for point in combinations("m:step", AXES[:1])]
    lines = lines_of(rows, AXES[:1])
    assert [line.split()[-1] for line in lines[2:5]] == ["refused"] * 3
    assert "refused: XLA's compiler refused the plan because it does not fit." in lines


def test_the_code_of_a_program_is_part_of_its_total() -> None:
    memory = replace(planned(349_000), code_bytes=993)
    assert memory.total_bytes == USABLE + 1
    assert not memory.fits
    assert replace(memory, code_bytes=992).fits


def test_each_row_has_the_time_of_a_step_and_items_per_second(rows: list[Row]) -> None:
    known = replace(
        planned(1),
        floor_seconds=1e-3,
        predicted=predicted(2e-3, 1e-3, 3e-3),
    )
    least = replace(planned(1), floor_seconds=1e-3)
    points = [row.candidate for row in rows]
    bound = replace(least, predicted=at_least(4e-3, "a loop"))
    timed = [Row(points[2], known), Row(points[4], least), rows[3], Row(points[4], bound)]
    lines = lines_of(timed, AXES, ())
    assert lines[1].endswith("fits      step  items/s")
    eight = points[4].values["batch"] / 1e-3
    assert lines[2].split()[-3:] == ["2.00", "ms", f"{points[2].values['batch'] / 2e-3:,.0f}"]
    assert lines[3].split()[-3:] == ["≥1.00", "ms", f"≤{eight:,.0f}"]
    assert lines[4].split()[-2:] == ["-", "-"]
    assert lines[5].split()[-3:] == ["≥4.00", "ms", f"≤{eight / 4:,.0f}"]
