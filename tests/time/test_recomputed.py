"""The kernels that XLA computes a second time, and their floors."""

from pathlib import Path

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost import step_cost
from xlapipe.time.recomputed import Recomputation, recomputed_kernels, rematerialised_names

TEXTS = Path(__file__).with_name("texts")
REMAT = (TEXTS / "remat_hlo.txt").read_text(encoding="utf-8")


def test_kernels_that_are_computed_again_have_their_floor() -> None:
    plan = plan_of_text(REMAT)
    assert rematerialised_names(plan) == ("a.remat", "a.remat2.1")
    (kernel,) = recomputed_kernels(plan, step_cost(plan, device_of_target("h200")))
    assert (kernel.instruction, kernel.value_bytes, kernel.launches) == ("a.remat", 4096, 1)
    assert kernel.floor_seconds is not None
    assert kernel.floor_seconds > 0
    assert recomputed_kernels(plan, None) == ()


def test_the_bytes_are_xlas_estimate_before_and_after() -> None:
    unknown, known = Recomputation(3, added_share=0.334), Recomputation(3, 45 << 30, 31 << 30)
    assert unknown.text(28 << 30) == (
        "XLA recomputes to fit: 28.0 GiB with 3 instructions more, +33% time"
    )
    assert known.text(28 << 30) == "XLA recomputes to fit: about 42.0 GiB -> 28.0 GiB"
