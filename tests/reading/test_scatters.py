"""How long the L2 cache takes for the updates of a scatter."""

from math import log, sqrt

import pytest

from tests.reading.small_hlo import plan_of_text
from xlapipe.cost.schedule import schedule_of
from xlapipe.cost.step_cost import step_cost
from xlapipe.predict import fusion_work
from xlapipe.predict.kernel_work import work_of
from xlapipe.predict.launches import sites_of
from xlapipe.predict.work import KernelWork
from xlapipe.targets.speeds import speeds_of_target

_ROWS, _WIDTH, _TABLE = 4096, 64, 1000


def _work(
    *,
    combine: str = "add",
    element: str = "f32",
    table: str = f"{_TABLE},{_WIDTH}",
    row: str = f"1,{_WIDTH}",
    index: str = "bitcast(t)",
    computed: bool = False,
    order: str = "",
) -> KernelWork:
    """The work of a fusion that scatters rows at indices, which are an argument or computed."""
    updates = f"{element}[{_ROWS},{row}]{{2,1,0}}"
    order = order or ",".join(str(dim) for dim in reversed(range(table.count(",") + 1)))
    whole = f"{element}[{table}]{{{order}}}"
    ids = f"s32[{_ROWS}]{{0}}"
    text = f"""HloModule small, is_scheduled=true
combine {{
  a = {element}[] parameter(0)
  b = {element}[] parameter(1)
  ROOT c = {element}[] {combine}(a, b)
}}
fused {{
  p = {whole} parameter(0)
  u = {updates} parameter(1)
  t = {ids} parameter(2)
  m = pred[{_ROWS}]{{0}} parameter(3)
  c = s32[] constant(103)
  b = {ids} broadcast(c), dimensions={{}}
  s = {ids} select(m, b, t)
  i = s32[{_ROWS},1]{{1,0}} {index}
  ROOT r = {whole} scatter(p, i, u), update_window_dims={{1,2}}, inserted_window_dims={{}}, \
scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=combine
}}
ENTRY main {{
  p = {whole} parameter(0)
  u = {updates} parameter(1)
  g = {ids} parameter(2)
  m = pred[{_ROWS}]{{0}} parameter(3)
  t = {ids} negate(g)
  ROOT f = {whole} fusion(p, u, {"t" if computed else "g"}, m), kind=kInput, calls=fused
}}
"""
    plan = plan_of_text(text)
    assert plan.module is not None
    cost = step_cost(plan, speeds_of_target("h200"))
    assert cost is not None
    sites = {site.instruction.name: site for site in sites_of(schedule_of(plan.module))}
    return work_of(sites["f"], cost.one_launch["f"][0], plan.module, None)


def test_half_of_the_rows_of_a_select_between_a_constant_and_an_argument_meet() -> None:
    spread, chosen = _work(), _work(index="bitcast(s)")
    assert (spread.rows_of_a_constant, chosen.rows_of_a_constant) == (0, _ROWS / 2)
    assert spread.update_seconds < chosen.update_seconds == pytest.approx(_ROWS / 2 * 20e-9)
    short = _work(index="bitcast(s)", element="bf16")
    expected = _ROWS / 2 * sqrt(_ROWS / 2) * fusion_work._TRIED_AMONG_OTHERS
    assert short.update_seconds == pytest.approx(expected)
    # An index that was computed, as those of tokens that experts take, is rarely replaced.
    assert _work(index="bitcast(s)", computed=True).rows_of_a_constant == 0


def test_of_updates_to_one_place_only_those_that_are_larger_try_to_write() -> None:
    of_place = _ROWS / _TABLE
    larger = (log(of_place) + 0.5772) / of_place
    tried, read = fusion_work._TRIED_SECTOR[1], fusion_work._READ_SECTOR[1]
    sectors = _ROWS * _WIDTH / 8
    expected = sectors * (larger * tried + (1 - larger) * read)
    assert _work(combine="maximum").update_seconds == pytest.approx(expected, rel=1e-3)


def test_elements_of_a_row_across_the_minor_dimension_are_updated_alone() -> None:
    near = _work(table="1000,4,32", row="4,32").update_seconds
    far = _work(table="4,32,1000", row="4,32").update_seconds
    alone, whole = fusion_work._ADDED_SECTOR
    assert far / near == pytest.approx(8 * alone / whole)


@pytest.mark.parametrize("order", ["5,0", "0", "1,1"])
def test_a_damaged_layout_is_taken_for_the_usual_one(order: str) -> None:
    assert _work(order=order).update_seconds == _work().update_seconds
