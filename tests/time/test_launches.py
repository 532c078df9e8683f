"""Which thunk launches which kernel."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.thunks import Thunk
from xlapipe.time.cost.schedule import schedule_of
from xlapipe.time.cost.thunks import thunks_of
from xlapipe.time.predict.launches import parts_of_a_call

TEXTS = Path(__file__).with_name("texts")
_TEXT = (TEXTS / "sort_hlo.txt").read_text(encoding="utf-8")
_COPY = Thunk("kCopy", 0, "kCopy")
_SORT = [Thunk("kCustomKernel", 0, f"sort_2_1{end} grid: [4, 1, 1]") for end in ("", "__1", "__2")]
_FUSION = Thunk("kCustomKernel", 0, "fusion_1 grid: [32, 1, 1] threads: [128, 1, 1]")


@pytest.mark.parametrize("copies", [1, 2], ids=["none of the operand", "one of the operand"])
def test_only_copies_that_no_instruction_states_are_of_a_sorts_operand(copies: int) -> None:
    plan = replace(plan_of_text(_TEXT), thunks=(*[_COPY] * copies, *_SORT, _FUSION))
    assert plan.module is not None
    thunks = thunks_of(plan, schedule_of(plan.module))
    assert thunks == {"copy.1": _COPY, "sort.1": _SORT[0], "fusion.1": _FUSION}


def test_kernels_of_one_sort_may_have_others_between_them() -> None:
    plan = replace(plan_of_text(_TEXT), thunks=(_COPY, *_SORT[:2], _FUSION, _SORT[2]))
    assert plan.module is not None
    assert len(thunks_of(plan, schedule_of(plan.module))) == 3


def test_thunks_that_do_not_correspond_are_none() -> None:
    plan = replace(plan_of_text(_TEXT), thunks=(_COPY, *_SORT))
    assert plan.module is not None
    assert thunks_of(plan, schedule_of(plan.module)) == {}


@pytest.mark.parametrize(("topology", "gpus"), [(None, 1), ("1x2", 2), ("4x8", 8)])
def test_a_process_dispatches_to_each_gpu_of_its_host(topology: str | None, gpus: int) -> None:
    plan = replace(plan_of_text(_TEXT), topology=topology)
    calls, leaves, _ = parts_of_a_call(plan, 1e-3, 5e-4)
    assert (calls, leaves) == (gpus, 2 * gpus)  # an argument and a result


def test_the_host_sleeps_in_long_calls() -> None:
    asleep = [parts_of_a_call(plan_of_text(_TEXT), time, 5e-4)[2] for time in (1e-5, 5e-4, 1e-1)]
    assert asleep == pytest.approx([0.0198, 0.632, 1.0], rel=1e-3)
