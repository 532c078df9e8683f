"""Products of GPUs without a calibration: curves of efficiency, their table, and what they give.

Measured times are NVIDIA's: ai-dynamo/aiconfigurator, commit 095f58a, Apache-2.0.
"""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.predict.prediction import Prediction, basis_of
from xlapipe.time.products.efficiency import (
    Product,
    efficiencies,
    product_seconds,
)
from xlapipe.time.study import Study


@pytest.mark.parametrize(
    ("target", "sizes", "element", "measured_us"),
    [
        ("a100_sxm_80", (8192, 8192, 8192), "bf16", 4189),
        ("a100_sxm_80", (256, 4096, 4096), "s8", 39.94),
        ("b200", (16, 6144, 4096), "bf16", 11.22),
        ("b200", (4096, 4096, 4096), "f8e4m3fn", 81.01),
        ("b200", (512, 8192, 8192), "f4e2m1fn", 26.67),
        ("gb200", (1024, 5120, 5120), "bf16", 37.06),
        ("l40s", (4096, 4096, 4096), "bf16", 545.5),
        ("l40s", (1, 4096, 4096), "f8e4m3fn", 15.87),
        ("rtx6000pro", (128, 7168, 2048), "bf16", 23.09),
        ("rtx6000pro", (8192, 16384, 4096), "f8e4m3fn", 1439),
    ],
)
def test_a_measured_product_takes_what_was_measured(
    target: str, sizes: tuple[int, int, int], element: str, measured_us: float
) -> None:
    device = device_of_target(target)
    assert device is not None
    found = product_seconds(Product(1, *sizes, element), device)
    assert found is not None and found.own
    assert found.seconds * 1e6 == pytest.approx(measured_us, rel=0.25)


def test_a_gpu_without_a_table_has_the_curve_of_the_nearest_and_a_wider_spread() -> None:
    product = Product(1, 1024, 4096, 4096, "bf16")
    for target, measured_on in (("b300", "gb200"), ("l4", "l40s"), ("a10", "l40s")):
        device = device_of_target(target)
        assert device is not None
        own = device_of_target(measured_on)
        assert own is not None
        other, same = product_seconds(product, device), product_seconds(product, own)
        assert other is not None and same is not None
        assert (other.measured_on, other.own) == (measured_on, False)
        assert other.spread > same.spread


@pytest.mark.parametrize(
    "product",
    [
        Product(1, 1024, 1024, 1024, "f32"),
        Product(1, 1024, 1023, 1024, "bf16"),
        Product(1, 1024, 1024, 1001, "bf16"),
    ],
)
def test_other_types_and_unaligned_rows_are_not_of_the_table(product: Product) -> None:
    device = device_of_target("b200")
    assert device is not None
    assert product_seconds(product, device) is None


def predicted(target: str, m: int, n: int, k: int, element: str = "bf16") -> Prediction:
    text = (
        "HloModule step, is_scheduled=true\n"
        f"ENTRY main {{\n  a = {element}[{m},{k}]{{1,0}} parameter(0)\n"
        f"  b = {element}[{k},{n}]{{1,0}} parameter(1)\n"
        f"  ROOT c = ({element}[{m},{n}]{{1,0}}, s8[4194304]{{0}}) custom-call(a, b), "
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{'
        '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},'
        '"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}}\n}\n'
    )
    result = Study(plan_of_text(text), device_of_target(target)).prediction
    assert result is not None
    return result


@pytest.mark.parametrize("target", ["b200", "a100_sxm_80", "l40s"])
def test_a_step_uses_the_table(target: str) -> None:
    result = predicted(target, 8192, 8192, 4096)
    device = device_of_target(target)
    assert device is not None
    found = product_seconds(Product(1, 8192, 8192, 4096, "bf16"), device)
    assert found is not None
    (kernel,) = result.kernels
    assert kernel.launch.basis == "table"
    assert kernel.seconds == pytest.approx(found.seconds, rel=0.01)
    peak = device.peak_of("bf16")
    assert peak and 0.4 < 2 * 8192 * 8192 * 4096 / peak / kernel.seconds < 1


def test_a_step_of_a_calibrated_gpu_does_not_use_it() -> None:
    for target in ("h200", "h100_sxm"):
        assert basis_of(predicted(target, 8192, 8192, 4096))["table"] == 0


def test_what_the_table_had_in_the_cache_is_read_from_memory() -> None:
    """Weights of 32 MB stay in the L2 cache of an L40S that repeats one product."""
    (kernel,) = predicted("l40s", 16, 4096, 4096).kernels
    assert kernel.seconds >= 4096 * 4096 * 2 / 864e9


def test_the_table_takes_some_kilobytes_of_each_gpu() -> None:
    table = efficiencies()
    assert len({gpu for gpu, _ in table.ratios}) == 7
    assert all(len(ratios) == 13 * 9 * 9 for ratios in table.ratios.values())
