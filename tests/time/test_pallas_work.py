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
