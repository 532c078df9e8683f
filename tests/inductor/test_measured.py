"""Real dumps of torch beside what its allocator was asked for: 2.11 on an H200, 2.13 on a CPU."""

import json
from pathlib import Path

import pytest

from xlapipe.inductor.inductor_plan import GraphKind, InductorPlan
from xlapipe.inductor.reader import read_inductor

# own_peak_bytes by folder and graph, and the bytes that calls hide.
PEAKS = {
    ("spectral", GraphKind.INFERENCE): (1_114_112, 0),
    ("float8", GraphKind.INFERENCE): (75_497_480, 0),
    ("mlp", GraphKind.FORWARD): (1_835_008, 0),
    ("mlp", GraphKind.BACKWARD): (5_505_024, 0),
    ("block", GraphKind.FORWARD): (33_644_576, 0),
    ("block", GraphKind.BACKWARD): (6_291_456, 0),
    ("resnet18", GraphKind.FORWARD): (209_618_304, 0),
    # cuDNN takes 8 × 512 × 7 × 7 × 4 B to bring a gradient into its layout.
    ("resnet18", GraphKind.BACKWARD): (10_266_624, 802_816),
}
# `make_cpu_dumps.py` made them; torch's profiler counted the bytes.
CPU_DUMPS = sorted((Path(__file__).parent / "data").glob("torch-*"))


def measured(folder: Path, kind: GraphKind | None) -> tuple[int, int]:
    """The most that a call asked for beyond what was there before, and what it left."""
    name = "backward" if kind == GraphKind.BACKWARD else "forward"
    call = json.loads((folder / "measured.json").read_text())[name]
    before = call["requested_before"]
    return call["requested_peak"] - before, call["requested_after"] - before


def plan_of(folder: Path, kind: GraphKind) -> InductorPlan:
    return next(plan for plan in read_inductor(folder).plans if plan.kind == kind)


@pytest.mark.parametrize(("name", "kind"), PEAKS)
def test_peaks_are_those_measured(inductor: Path, name: str, kind: GraphKind) -> None:
    peak, hidden = PEAKS[name, kind]
    totals = plan_of(inductor / name, kind).totals
    assert totals.own_peak_bytes == peak
    assert measured(inductor / name, kind) == (peak + hidden, totals.end_bytes)
    assert not hidden or totals.unknown_allocations


@pytest.mark.parametrize("name", ["spectral", "float8", "mlp", "block", "resnet18"])
def test_ir_alone_gives_the_forward_peak_too(inductor: Path, name: str) -> None:
    (folder,) = (inductor / name).glob("[fi]*0")
    (plan,) = read_inductor(folder / "ir_post_fusion.txt.gz").plans
    assert not plan.exact
    assert plan.totals.own_peak_bytes == measured(inductor / name, plan.kind)[0]


@pytest.mark.parametrize("folder", CPU_DUMPS, ids=lambda folder: folder.name)
def test_every_byte_is_the_profilers(folder: Path) -> None:
    for plan in read_inductor(folder).plans:
        assert plan.exact
        assert plan.totals.unknown_allocations == 0
        peak, end = measured(folder, plan.kind)
        assert (plan.totals.own_peak_bytes, plan.totals.end_bytes) == (peak, end)


def test_the_dumps_are_here() -> None:
    assert len(CPU_DUMPS) == 4
