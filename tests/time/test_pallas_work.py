"""Pallas kernels, predicted by what their own code does."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from xlapipe.errors import DumpError
from xlapipe.files.typed_data import MisfitError, typed
from xlapipe.plans.kernel_code import KernelCode
from xlapipe.report.subjects import open_subject
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.kernel_time import time_of
from xlapipe.time.predict.pallas_work import counted_work

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000
READS = KernelCode(
    kernel="k",
    operand_bytes=(64 * MEGABYTE,),
    result_bytes=(64 * MEGABYTE,),
    loaded_bytes=(64 * MEGABYTE, 0),
    stored_bytes=(0, 64 * MEGABYTE),
    updated_bytes=(0, 0),
    scattered_updates=0,
    programs=4096,
    warps=4,
    stages=3,
    operations={"other": 16 * MEGABYTE},
    flops={},
    steps=0.0,
    ordered_steps=0.0,
    longest_steps=0.0,
    sequence=2.0,
    reductions=0.0,
    live_words=4096,
)


def _seconds(code: KernelCode) -> float:
    cost = KernelCost(
        name="k",
        kind="k",
        op_name=None,
        source=None,
        read_bytes=min(code.operand_bytes[0], code.loaded_bytes[0]),
        written_bytes=min(code.result_bytes[0], code.stored_bytes[1]),
        code=code,
    )
    calibration = shipped_calibration("h200")
    assert calibration is not None
    return time_of(counted_work(cost, code), 0, False, calibration).seconds


def test_a_kernel_that_reads_and_writes_takes_as_long_as_its_bytes() -> None:
    assert _seconds(READS) == pytest.approx(128e6 / 4.2e12, rel=0.25)


@pytest.mark.parametrize(
    "more",
    [
        {"operations": {"exponential": 2_000 * MEGABYTE}},
        {"flops": {"bf16": 60_000_000 * MEGABYTE}},
        {"steps": 400.0, "longest_steps": 400.0},
        {"reductions": 500.0},
        {"updated_bytes": (0, 64 * MEGABYTE), "result_bytes": (4096,)},
        {"scattered_updates": 100 * MEGABYTE},
        # Values that registers do not hold, in each of some steps.
        {"live_words": 128 * 600, "steps": 50.0, "longest_steps": 50.0},
        # Half of the programs have no steps, and one has many.
        {"steps": 10.0, "longest_steps": 2000.0},
    ],
)
def test_what_else_it_does_takes_longer(more: dict[str, object]) -> None:
    assert _seconds(replace(READS, **more)) > 1.5 * _seconds(READS)  # type: ignore[arg-type]


def test_few_programs_leave_multiprocessors_idle() -> None:
    few = replace(READS, programs=16, operations={"exponential": 200 * MEGABYTE})
    assert _seconds(few) > 3 * _seconds(replace(few, programs=2048))


def test_loops_and_branches_that_data_decide_are_assumed() -> None:
    cost = KernelCost(name="k", kind="k", op_name=None, source=None)
    assert counted_work(cost, replace(READS, undecided=1)).partly_unknown
    assert not counted_work(cost, READS).partly_unknown


@pytest.mark.parametrize(
    "wrong",
    [
        {"programs": 0},
        {"warps": -1},
        {"steps": -1.0},
        {"live_words": 1 << 80},
        {"operations": {"other": -5}},
        {"loaded_bytes": (1,)},
    ],
)
def test_code_that_no_kernel_has_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MisfitError, match=f"{next(iter(wrong))}|has . arrays"):
        typed(KernelCode, {**asdict(READS), **wrong})


def test_a_manifest_with_such_code_is_refused(tmp_path: Path) -> None:
    (dump,) = (ROOT / "hlo_dumps/float8-linear-forward").glob("h200-cublas-jax*")
    folder = shutil.copytree(dump, tmp_path / "dump")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["kernel_codes"][0]["programs"] = 0
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        DumpError, match=r"kernel_codes.0..programs: expected an integer >= 1.*fix:"
    ):
        open_subject(folder)
