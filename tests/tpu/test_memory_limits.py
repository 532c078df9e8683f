"""`fit` and XLA's compiler for TPUs agree on what fits: the compiler itself refuses the rest."""

from pathlib import Path

import pytest

from tests.tpu.live import LIBTPU, job_of, needs_libtpu, own
from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.compile.pipeline import compile_dump
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.dump.dump import open_dump
from xlapipe.errors import CompileError
from xlapipe.plans.program import Program
from xlapipe.search.memory_budget import MemoryBudget
from xlapipe.search.planned_memory import PlannedMemory, planned_memory
from xlapipe.search.rows import SearchSettings, compile_rows
from xlapipe.search.sweep import Axis, combinations

pytestmark = needs_libtpu

# Bytes of a row of `doubled`, whose memory is its argument, its output and its code.
ROW_BYTES = 2 * 1024 * 4


def planned(workload: str, target: str, name: str, *values: int) -> list[PlannedMemory]:
    """The memory for each value of the parameter `name`, by `fit`."""
    points = combinations(workload, [Axis(name, values)])
    search = SearchSettings(compile=CompileSettings(target=target), at_once=1)
    outcomes = [row.outcome for row in compile_rows(points, search)]
    memory = [outcome for outcome in outcomes if isinstance(outcome, PlannedMemory)]
    assert len(memory) == len(outcomes), outcomes
    return memory


@pytest.mark.parametrize("target", list(tpu_catalogue()))
def test_the_catalogue_has_the_limit_of_this_libtpu(target: str) -> None:
    """The compiler accepts what leaves 64 KiB or less, and refuses 64 KiB more."""
    usable = tpu_catalogue()[target].usable_bytes(LIBTPU)
    below = usable // ROW_BYTES // 8 * 8 - 256
    (memory,) = planned(own("doubled"), target, "rows", below)
    assert (memory.fits, memory.refused, memory.usable_bytes) == (True, False, usable)
    fitting = below + memory.headroom_bytes // ROW_BYTES // 8 * 8
    accepted, refused = planned(own("doubled"), target, "rows", fitting, fitting + 8)
    assert (accepted.fits, accepted.refused) == (True, False)
    assert 0 <= accepted.headroom_bytes < 8 * ROW_BYTES
    assert (refused.fits, refused.refused) == (False, True)


def test_the_largest_products_are_those_of_the_compiler() -> None:
    """Two batches that differ by 0.1 % of the memory of a v5e."""
    usable = tpu_catalogue()["v5e"].usable_bytes(LIBTPU)
    # The weight, and per row arguments, output and temp.
    fitting = (usable - 8192 * 8192 * 4) // (8192 * (4 + 4 + 2)) // 8 * 8
    accepted, refused = planned(own("products"), "v5e", "batch", fitting - 256, fitting + 8)
    assert (accepted.fits, accepted.refused) == (True, False)
    assert 0 <= accepted.headroom_bytes < usable / 100
    assert (refused.fits, refused.refused) == (False, True)


def test_the_largest_batch_of_a_model_is_that_of_the_compiler() -> None:
    """Two batches of qwen3-decode, both within 1 % of the memory of a v5e."""
    accepted, refused = planned("qwen3-decode", "v5e", "batch", 936, 952)
    assert (accepted.fits, accepted.refused) == (True, False)
    assert 0 <= accepted.headroom_bytes < accepted.usable_bytes / 100
    assert (refused.fits, refused.refused) == (False, True)
    assert -refused.usable_bytes / 100 < refused.headroom_bytes


def test_a_refused_program_gives_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = f"{own('products')}(batch=400000)"
    out = str(tmp_path)
    assert main(["dump", workload, "--target", "v5e", "--out", out]) == 2
    message = capsys.readouterr().err
    assert "products: does not fit Google TPU v5e: RESOURCE_EXHAUSTED" in message
    (path,) = tmp_path.glob("products*/*")
    dump = open_dump(path)
    assert dump.manifest.refused
    assert dump.plan.totals.total_allocation_bytes > tpu_catalogue()["v5e"].hbm_bytes
    assert main(["check", str(path)]) == 1
    assert "FAIL  fits the device" in capsys.readouterr().out


def test_a_refused_program_has_no_plan_for_a_test() -> None:
    """The pytest fixture reads what `compile_dump` returns."""
    with pytest.raises(CompileError, match="does not fit Google TPU v5e"):
        compile_dump(job_of(f"{own('products')}(batch=400000)", "v5e"), None)


def test_the_row_that_the_whole_plan_is_read_for_has_an_estimated_time() -> None:
    """The dump of a TPU has no configuration of the device, whose name states it."""
    seen: list[Program] = []
    memory = planned_memory(job_of(own("donated")), MemoryBudget(), on_program=seen.append)
    assert seen and memory.predicted is not None and memory.predicted.step_seconds
