"""How long the L2 cache takes for the updates of a scatter."""

from math import inf, log
from typing import Any

import pytest

from tests.time.small_work import work_of_text
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.gpu import HOPPER
from xlapipe.time.predict.kernel_time import time_of
from xlapipe.time.predict.work import KernelWork, Updates

_ROWS, _WIDTH, _TABLE = 4096, 64, 1000
COSTS = HOPPER.features.scatters


def _work(
    *,
    combine: str = "add",
    element: str = "f32",
    table: str = f"{_TABLE},{_WIDTH}",
    row: str = f"1,{_WIDTH}",
    index: str = "bitcast(t)",
    computed: bool = False,
    mask: str = "",
    negated: bool = False,
    chooses: str = "m",
    order: str = "",
    ids: str = "",
) -> KernelWork:
    """The work of a fusion that scatters rows at indices, which are an argument or computed."""
    dims = ",".join(str(dim) for dim in reversed(range(row.count(",") + 2)))
    updates = f"{element}[{_ROWS},{row}]{{{dims}}}"
    order = order or ",".join(str(dim) for dim in reversed(range(table.count(",") + 1)))
    whole = f"{element}[{table}]{{{order}}}"
    damaged = ids or f"s32[{_ROWS},1]{{1,0}}"
    ids = f"s32[{_ROWS}]{{0}}"
    text = f"""HloModule small, is_scheduled=true
combine {{
  a = {element}[] parameter(0)
  b = {element}[] parameter(1)
  ROOT c = {element}[] {combine}(a, b)
}}
fused {{
  p = {whole} parameter(0)
  x = {updates} parameter(1)
  u = {updates} {"negate" if negated else "bitcast"}(x)
  t = {ids} parameter(2)
  m = pred[{_ROWS}]{{0}} parameter(3)
  c = s32[] constant(103)
  b = {ids} broadcast(c), dimensions={{}}
  z = f32[{_ROWS}]{{0}} parameter(4)
  l = f32[] constant(0.75)
  v = f32[{_ROWS}]{{0}} broadcast(l), dimensions={{}}
  less = pred[{_ROWS}]{{0}} compare(z, v), direction=LT
  more = pred[{_ROWS}]{{0}} compare(v, z), direction=LT
  both = pred[{_ROWS}]{{0}} and(less, m)
  q = {ids} select(more, b, t)
  nested = {ids} select(less, q, t)
  s = {ids} select({chooses}, b, t)
  o = {ids} iota(), iota_dimension=0
  k = s32[] constant(31)
  e = {ids} broadcast(k), dimensions={{}}
  w = {ids} minimum(o, e)
  i = {damaged} {index}
  ROOT r = {whole} scatter(p, i, u), update_window_dims={{1,2}}, inserted_window_dims={{}}, \
scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=combine
}}
ENTRY main {{
  p = {whole} parameter(0)
  u = {updates} parameter(1)
  g = {ids} parameter(2)
  m = pred[{_ROWS}]{{0}} parameter(3)
  t = {ids} negate(g)
  n = pred[{_ROWS}]{{0}} {mask or "not(m)"}
  z = f32[{_ROWS}]{{0}} parameter(4)
  ROOT f = {whole} fusion(p, u, {"t" if computed else "g"}, {"n" if mask else "m"}, z), \
kind=kInput, calls=fused
}}
"""
    return work_of_text(text)


def _updates(**given: Any) -> Updates:
    updates = _work(**given).updates
    assert updates is not None
    return updates


def test_some_rows_of_a_select_between_a_constant_and_an_argument_meet() -> None:
    spread, chosen = _updates(), _updates(index="bitcast(s)")
    # The caller says which, as of masked tokens.
    met = _ROWS * 0.15
    assert (spread.rows_of_a_constant, chosen.rows_of_a_constant) == (0, met)
    assert spread.seconds < chosen.seconds == pytest.approx(met * 20e-9)
    # The step itself chooses.
    random = _updates(index="bitcast(s)", mask="xor(m, m)")
    assert random.rows_of_a_constant == _ROWS / 2
    short = _updates(index="bitcast(s)", element="bf16")
    # All of them wait for each other, half of them on average, while all their threads try.
    waiting = met / 2 * COSTS.waiting_in_one_seconds
    threads = met * _WIDTH / 4
    trying = threads / COSTS.tried_at_once * COSTS.tried_together_seconds
    assert short.seconds == pytest.approx(met * (waiting + trying) * COSTS.gradient_share)
    # An index that was computed, as those of tokens that experts take, is rarely replaced.
    assert _updates(index="bitcast(s)", computed=True).rows_of_a_constant == 0


@pytest.mark.parametrize(
    ("chooses", "index", "share"),
    [
        ("less", "bitcast(s)", 0.75),
        ("more", "bitcast(s)", 0.25),
        ("both", "bitcast(s)", 0.75),
        ("m", "bitcast(nested)", 0.75 * 0.25),
    ],
)
def test_a_comparison_with_a_constant_states_the_share(
    chooses: str, index: str, share: float
) -> None:
    updates = _updates(chooses=chooses, index=index, mask="xor(m, m)")
    assert updates.rows_of_a_constant == pytest.approx(_ROWS * share)


def test_a_prediction_does_not_depend_on_what_was_predicted_before() -> None:
    # Equal scatters but for another kernel, which computes the mask, of random numbers or not.
    masks = ("and(m, m)", "xor(m, m)")
    rows = [_updates(index="bitcast(s)", mask=mask).rows_of_a_constant for mask in masks]
    assert rows == [_ROWS * 0.15, _ROWS * 0.5]


def test_rows_of_a_bias_by_distance_take_so_long_at_most() -> None:
    given = {"table": "32,8", "row": "1,8", "element": "bf16"}
    assert _updates(**given).most_seconds == inf
    positions = _work(**given, index="bitcast(o)")
    assert positions.what.endswith("at indices that follow from positions")
    assert positions.updates is not None
    assert positions.updates.most_seconds == _ROWS * COSTS.position_seconds
    calibration = shipped_calibration("h200")
    assert calibration is not None
    time = time_of(positions, 0, False, calibration)
    assert time.seconds == pytest.approx(positions.updates.most_seconds)
    assert time.seconds == pytest.approx(
        sum(part.seconds for part in time.parts) * time.ratio * time.in_a_step
    )


def test_rows_of_an_embedding_of_distances_meet_where_the_plan_has_them() -> None:
    given = {"table": "32,64", "row": "1,64", "element": "bf16"}
    # All distances from 31 on are one: 4,065 rows of 4,096 wait for each other there.
    clamped = _work(**given, index="bitcast(w)").updates
    assert clamped is not None
    spread, own = _updates(**given), _updates(**given, index="bitcast(o)")
    assert clamped.most_seconds == inf
    assert clamped.seconds > 5 * spread.seconds
    assert own.seconds == spread.seconds


def test_of_updates_to_one_place_only_those_that_are_larger_try_to_write() -> None:
    of_place = _ROWS / _TABLE
    larger = (log(of_place) + 0.5772) / of_place
    # A thread has four elements, which it adds one after another: two threads of a warp have
    # elements of one sector.
    sectors = _ROWS * _WIDTH / 2
    read = COSTS.read_seconds[0] + (COSTS.read_seconds[1] - COSTS.read_seconds[0]) / 3
    expected = sectors * (larger * COSTS.tried_together_seconds + (1 - larger) * read)
    assert _updates(combine="maximum").seconds == pytest.approx(expected, rel=1e-3)


def test_a_negated_update_is_tried_and_others_of_32_bits_are_added_at_once() -> None:
    added, negated = _updates(), _updates(negated=True)
    assert (added.tried, negated.tried, negated.negated) == (False, True, True)
    assert _work(negated=True).kind == "input scatter by attempts"
    # Eight elements of a sector at once, or two.
    assert added.seconds == pytest.approx(_ROWS * _WIDTH / 8 * COSTS.added_seconds[1])
    tried = _ROWS * _WIDTH / 2 * COSTS.tried_together_seconds
    assert tried < negated.seconds < 2 * tried
    assert not _updates(negated=True, combine="maximum").tried


def test_elements_of_a_row_across_the_minor_dimension_are_updated_alone() -> None:
    near = _updates(table="1000,4,32", row="1,4,32").seconds
    far = _updates(table="4,32,1000", row="4,32,1").seconds
    assert far / near == pytest.approx(8 * COSTS.added_seconds[0] / COSTS.added_seconds[1])


def test_rows_whose_minor_dimension_is_odd_are_added_element_by_element() -> None:
    even = _updates(table="1000,4,48", row="1,4,48").seconds
    odd = _updates(table="1000,4,47", row="1,4,47").seconds
    # A thread has four elements: its instructions reach half as many sectors as elements.
    assert odd / even == pytest.approx(4 * 47 / 48, rel=0.15)


def test_the_fewer_places_the_longer_do_tried_updates_of_one_place_wait() -> None:
    seconds = [_updates(element="bf16", table=f"{rows},{_WIDTH}").seconds for rows in (9, 90, 900)]
    assert seconds[0] > 5 * seconds[1] > 10 * seconds[2]


@pytest.mark.parametrize("index", ["constant(3)", "parameter(9)", "negate(u)"])
@pytest.mark.parametrize("ids", ["s32[]", "s32[0]{0}", "s32[7]{0}"])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_damaged_indices_are_no_error(element: str, ids: str, index: str) -> None:
    assert _updates(element=element, index=index, ids=ids).seconds > 0


@pytest.mark.parametrize("order", ["5,0", "0", "1,1"])
def test_a_damaged_layout_is_taken_for_the_usual_one(order: str) -> None:
    assert _updates(order=order).seconds == _updates().seconds
