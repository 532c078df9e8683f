"""Real dumps of torch 2.11 beside what its allocator was asked for on an H200."""

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


def plan_of(folder: Path, kind: GraphKind) -> InductorPlan:
    return next(plan for plan in read_inductor(folder).plans if plan.kind == kind)


@pytest.mark.parametrize(("name", "kind"), PEAKS)
def test_peaks_are_those_measured(inductor: Path, name: str, kind: GraphKind) -> None:
    peak, hidden = PEAKS[name, kind]
    plan = plan_of(inductor / name, kind)
    assert plan.totals.own_peak_bytes == peak
    assert plan.remainder_bytes == hidden
    assert not hidden or plan.totals.unknown_allocations
    assert plan.measured is not None
    assert plan.totals.end_bytes == plan.measured.end_bytes


@pytest.mark.parametrize("name", ["spectral", "float8", "mlp", "block", "resnet18"])
def test_ir_alone_gives_the_forward_peak_too(inductor: Path, name: str) -> None:
    (folder,) = (inductor / name).glob("[fi]*0")
    (plan,) = read_inductor(folder / "ir_post_fusion.txt.gz").plans
    assert not plan.exact
    assert plan.remainder_bytes == 0
