"""Model FLOPs are those of the program as lowered, whatever XLA computes again."""

from pathlib import Path

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.hlo import HloModule
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.study import Study

# Two products of 2 × 1024³, one of them in three trips of a loop that `jax.checkpoint` repeats.
TEXTS = Path(__file__).with_name("texts")
LOWERED = (TEXTS / "products_in_a_loop_hlo.txt").read_text(encoding="utf-8")
RECOMPUTED = 'metadata={op_name="checkpoint/rematted_computation/dot"}'
PRODUCT = 2 * 1024**3
# The plan computes one product three times.
PLAN = (TEXTS / "products_in_a_loop_optimised_hlo.txt").read_text(encoding="utf-8")


def lowered(limit: str) -> HloModule:
    module = plan_of_text(LOWERED.replace("LIMIT", limit).replace("AGAIN", RECOMPUTED)).module
    assert module is not None
    return module


def study(module: HloModule | None, trips: int | None = None) -> Study:
    device = device_of_target("h200")
    settings = PredictionSettings(unknown_trips=trips)
    return Study(plan_of_text(PLAN), device, settings, lambda: module)


def test_products_of_loops_count_and_those_of_checkpoints_do_not() -> None:
    prediction = study(lowered("constant(3)")).prediction_with_mfu
    assert prediction is not None and prediction.mfu is not None and prediction.step_seconds
    assert prediction.mfu * prediction.step_seconds == pytest.approx(4 * PRODUCT / 989e12, rel=1e-3)
    assert "of the peak (bf16 989 TFLOP/s) for 0.00859 TFLOP as lowered" in prediction.mfu_text


def test_the_mfu_is_refused_without_the_lowered_module_or_the_trips_of_a_loop() -> None:
    for module, why in ((None, "no module before"), (lowered("parameter(1)"), "trips")):
        prediction = study(module).prediction_with_mfu
        assert prediction is not None and prediction.mfu is None
        assert prediction.mfu_text.startswith("MFU not computed") and why in prediction.mfu_text
    stated = study(lowered("parameter(1)"), trips=3).prediction_with_mfu
    assert stated is not None and stated.mfu is not None


def test_what_xla_computes_again_is_a_copy_of_what_another_kernel_computed() -> None:
    """`c.remat2` replaced its original, which XLA deleted."""
    again, prediction = study(None).recomputation, study(None).prediction
    assert again is not None and again.instructions == 2 and prediction is not None
    of = {kernel.name: kernel.seconds for kernel in prediction.kernels}
    rest = sum(of.values()) - of["a.remat"]
    assert again.added_share == pytest.approx(of["a.remat"] / rest)
