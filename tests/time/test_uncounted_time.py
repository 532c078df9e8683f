"""Steps of which a prediction counts a part: it is a lower bound, and says so."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.shared.programs import program_of
from tests.shared.sample_records import at_least, planned, predicted
from tests.shared.small_hlo import plan_of_text
from xlapipe.cli.choose_table import choice_lines
from xlapipe.devices.targets.device import device_of_target
from xlapipe.differences.time_changes import time_changes
from xlapipe.errors import XlapipeError
from xlapipe.expect import StepTimeAtMost
from xlapipe.plans.plan import Plan
from xlapipe.registry import find_workload
from xlapipe.search.candidate import Candidate, StepChange
from xlapipe.search.choosing.choose import Choice, choose
from xlapipe.search.choosing.rows import lower_bound_notes, row_figures, with_chosen
from xlapipe.search.rows import Row
from xlapipe.time.cost import step_cost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.predict import predict
from xlapipe.time.predict.prediction import Prediction
from xlapipe.time.prediction_settings import PredictionSettings

TEXTS = Path(__file__).with_name("texts")
LOOP = (TEXTS / "counted_loop_hlo.txt").read_text(encoding="utf-8")
CALL = """HloModule small, is_scheduled=true
ENTRY main {
  x = f32[4096]{0} parameter(0)
  ROOT y = f32[4096]{0} custom-call(x), custom_call_target="cusparse_csr_matvec_ffi"
}
"""


def predicted_time(plan: Plan, trips: int | None = None) -> Prediction:
    calibration, cost = shipped_calibration("h200"), step_cost(plan, device_of_target("h200"))
    assert calibration is not None
    assert cost is not None
    return predict(plan, cost, calibration, PredictionSettings(unknown_trips=trips))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LOOP, "a loop whose number of trips is unknown: one is counted"),
        (
            CALL,
            "a library is called once, in ways that were not timed (cusparse_csr_matvec_ffi f32)",
        ),
    ],
)
def test_what_is_not_counted_is_said_and_no_limit_holds(text: str, why: str) -> None:
    plan = plan_of_text(text)
    (uncounted,) = predicted_time(plan).uncounted
    assert uncounted.startswith(why)
    finding = StepTimeAtMost(1.0).check(program_of(plan, target="h200"))
    (violation,) = finding.violations
    assert violation.found.startswith("step of at least ")
    assert why in violation.found
    assert "loop_trips" in violation.advice


def test_stated_trips_are_counted() -> None:
    plan = replace(plan_of_text(LOOP), stated_trips=50)
    once, stated = predicted_time(plan_of_text(LOOP)), predicted_time(plan)
    assert not stated.uncounted
    assert stated.kernel_seconds == pytest.approx(50 * once.kernel_seconds)
    # An option of the command goes before what the workload states.
    assert predicted_time(plan, 10).kernel_seconds == pytest.approx(10 * once.kernel_seconds)
    program = program_of(plan, target="h200")
    assert StepTimeAtMost(1.0).check(program).holds


def test_the_timeline_of_a_loop_has_its_first_trips_and_the_rest_as_one_event() -> None:
    step = predicted_time(replace(plan_of_text(LOOP), stated_trips=50))
    events = step.timeline
    assert sum(event.launches for event in events) == sum(item.launches for item in step.kernels)
    (further,) = (event for event in events if event.time is None)
    assert further.trips == 48
    assert all(
        after.start_seconds >= before.start_seconds + before.seconds
        for before, after in pairwise(events)
    )
    assert step.span_seconds == pytest.approx(events[-1].start_seconds + events[-1].seconds)


def row(seconds: float | None, *, total_bytes: int = 4, change: str | None = None) -> Row:
    """A form that fits; without seconds, of which a lower bound of 1 µs is known."""
    time = at_least(1e-6, "a loop") if seconds is None else predicted(seconds, seconds, seconds)
    memory = planned(0, argument_bytes=total_bytes, output_bytes=0, predicted=time)
    changed = StepChange(change, "") if change is not None else None
    return Row(Candidate(find_workload("step:train"), {}, "h200", changed), memory)


def test_choose_does_not_rank_a_lower_bound() -> None:
    rows = with_chosen([row(None), row(2e-3, change="slow"), row(1e-3, change="fast")])
    texts = [str(item.candidate.change.text) if item.candidate.change else None for item in rows]
    assert texts == ["fast", "slow", None]
    assert [item.chosen for item in rows] == [True, False, False]
    fast, slow, unknown = (item.probability_faster for item in rows)
    assert (fast, unknown) == (None, None)
    assert 0 <= slow < 0.01
    (note,) = lower_bound_notes(rows)
    assert note == (
        "h200: of 1 of 3 forms only the least time is known, so they are not ranked by time: "
        "a loop."
    )
    figures = row_figures(rows[2])
    assert figures["predicted_step_seconds"] is None
    assert figures["predicted_at_least_seconds"] == 1e-6


def test_choose_never_chooses_a_change_without_a_use() -> None:
    """Both are predicted to be faster, by less than is seen, and neither is smaller."""
    rows = with_chosen(
        [
            row(1e-3),
            row(0.9999e-3, change="same"),
            row(0.9998e-3, total_bytes=5, change="larger"),
            row(0.9997e-3, total_bytes=3, change="smaller"),
            row(0.98e-3, total_bytes=6, change="faster"),
        ]
    )
    said = {item.candidate.change_text: (item.effect, item.saved_bytes) for item in rows}
    assert said == {
        "faster": ("", -2),
        "smaller": ("", 1),
        "larger": ("larger, and no faster", -1),
        "same": ("changes nothing", 0),
        "as written": ("", 0),
    }
    without = [item for item in rows if item.candidate.change_text not in ("faster", "smaller")]
    (chosen,) = (item for item in with_chosen(without) if item.chosen)
    assert chosen.candidate.change is None


def test_choose_states_that_a_chosen_lower_bound_is_not_known_to_be_fastest() -> None:
    rows = with_chosen([row(None, total_bytes=3, change="small"), row(None)])
    assert [item.candidate.change is None for item in rows] == [True, False]
    (note,) = lower_bound_notes(rows)
    assert "of 2 of 2 forms only the least time is known" in note
    assert note.endswith("whether it is the fastest is unknown.")
    lines = [str(line) for line in choice_lines(Choice(workload="w", maximise=None, rows=rows))]
    assert sum("≥ 1.00 µs" in line for line in lines) == 2


def test_diff_does_not_compare_a_lower_bound() -> None:
    plan = plan_of_text(LOOP)
    counted = replace(plan, stated_trips=7)
    costs = [step_cost(item, device_of_target("h200")) for item in (plan_of_text(CALL), plan)]
    times = (predicted_time(counted), predicted_time(plan))
    (step, *lines) = time_changes(costs[0], costs[1], times)
    assert "µs -> at least" in step.text
    assert "not compared, because a part is not counted" in step.text
    assert "%" not in step.text
    assert lines
    assert all("predicted" not in line.text for line in lines)


@pytest.mark.parametrize("minutes", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_budget_is_a_number_of_minutes(minutes: float) -> None:
    with pytest.raises(XlapipeError, match=r"--budget .*: expected a number of minutes above 0"):
        choose("qwen3-decode", budget_minutes=minutes)
