"""Device of GPUs: from the catalogue and from a device's configuration."""

from dataclasses import replace
from importlib.resources import files
from math import log

import pytest

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.catalogue import (
    catalogue,
    is_same_device,
    name_of_target,
    row_of_device,
)
from xlapipe.devices.targets.device import device_of_config, device_of_target
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.expect import StepTimeAtMost
from xlapipe.plans import Plan
from xlapipe.plans.usable_memory import usable_memory
from xlapipe.time.predict.calibration import CalibrationError, shipped_calibration
from xlapipe.time.predict.gpu import HOPPER, gpu_of
from xlapipe.time.predict.scaled_calibration import calibration_for
from xlapipe.time.study import Study

DEVICE = (files("xlapipe.devices.targets") / "h200_device.txtpb").read_text()


@pytest.mark.parametrize("name", [row.name for row in catalogue() if row.unsupported is None])
def test_every_target_has_speeds_with_a_source(name: str) -> None:
    speeds = device_of_target(name)
    assert speeds is not None
    assert speeds.peak_source
    assert speeds.l2_bytes > 0
    peaks = [speeds.peak_of(kind) for kind in ("f64", "f32", "bf16", "s8")]
    assert None not in peaks
    # Blackwell Ultra has little int8.
    ordered = peaks[:3] if name.endswith("b300") else peaks
    assert ordered == sorted(ordered)
    assert speeds.peak_of("f16") == speeds.peak_of("bf16")
    if speeds.peak_of("f8e4m3fn") is not None:
        assert speeds.peak_of("f8e5m2") == 2 * speeds.peak_of("bf16")


def test_device_reports_its_own_bandwidth_cache_and_rates() -> None:
    device, row = device_of_config(DEVICE), device_of_target("h200")
    assert device is not None
    assert row is not None
    assert (device.bandwidth, device.l2_bytes) == (4_814_304_000_000, 62_914_560)
    # 132 cores × 4 units × 512 multiply-adds × 1.83 GHz.
    assert device.peak_of("bf16") == pytest.approx(989.2e12, rel=1e-4)
    for kind in ("f64", "f32", "bf16", "f8e4m3fn", "s8"):
        assert device.peak_of(kind) == pytest.approx(row.peak_of(kind))


def test_configuration_without_rates_has_the_peaks_of_its_row() -> None:
    row = next(row for row in catalogue() if row.name == "a100_sxm_80")
    text = row.target().config_text
    assert device_of_config(text) == device_of_target("a100_sxm_80")
    for other in (
        text.replace("NVIDIA A100-SXM4-80GB", "NVIDIA A100"),
        text.replace("core_count: 108", "core_count: 98"),
    ):
        unknown = device_of_config(other)
        assert unknown is not None
        assert (unknown.row, unknown.peak_of("bf16"), unknown.peak_source) == (None, None, "")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 141GB HBM3e", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H20", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100", None),
        ("NVIDIA GB20", None),
        ("N", None),
        ("", None),
    ],
)
def test_a_device_is_one_of_the_catalogue_by_its_whole_name(name: str, row: str | None) -> None:
    found = row_of_device(name)
    assert (found.name if found is not None else None) == row
    assert is_same_device(name, "NVIDIA H200") == (row == "h200")


def test_a_part_of_a_gpu_is_another_device() -> None:
    assert row_of_device("NVIDIA H200", 132) is not None
    assert row_of_device("NVIDIA H200", 78) is None


def test_a_configuration_that_only_shares_the_name_of_its_file_is_another_device() -> None:
    h20 = DEVICE.replace("NVIDIA H200", "NVIDIA H20").replace("core_count: 132", "core_count: 78")
    target = replace(target_attached(h20), name="h200_mine")
    assert name_of_target(target) == "h200_mine"
    assert name_of_target(target_attached(DEVICE)) == "h200"
    memory = usable_memory(target, Plan(()))
    assert memory.outside is not None
    assert memory.outside.device is None


def test_a_calibration_holds_for_its_own_device_alone() -> None:
    h200, a100 = device_of_target("h200"), device_of_target("a100_sxm_80")
    base = shipped_calibration("h200")
    assert h200 is not None
    assert a100 is not None
    assert base is not None
    assert calibration_for(h200, base) is base
    scaled = calibration_for(a100, base)
    assert scaled is not None
    assert (scaled.device, scaled.scaled_from) == ("NVIDIA A100-SXM4-80GB", "NVIDIA H200")
    for name in ("N", "NVIDIA H20", "NVIDIA L40", "AMD Instinct MI100"):
        other = replace(base, provenance={**base.provenance, "device": name})
        with pytest.raises(CalibrationError, match=f"of '{name}', which the catalogue does not"):
            calibration_for(h200, other)
        unlisted = replace(h200, name=name, row=None)
        assert calibration_for(unlisted, other) is other


@pytest.mark.parametrize("text", ["", "gpu_device_info { core_count: 3 }", "not a proto {{"])
def test_configuration_without_bandwidth_has_no_speeds(text: str) -> None:
    assert device_of_config(text) is None


PRODUCT = """HloModule s, is_scheduled=true
ENTRY main {
  a = bf16[8192,4096]{1,0} parameter(0)
  b = bf16[4096,8192]{1,0} parameter(1)
  ROOT y = bf16[8192,8192]{1,0} custom-call(a, b), custom_call_target="__cublas$lt$matmul", CONFIG
}
""".replace(
    "CONFIG",
    'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":'
    '["1"],"rhs_contracting_dimensions":["0"]}}}',
)


@pytest.mark.parametrize(
    ("target", "measured_us"),
    [("h200", 692.0), ("h100_sxm", 700.7), ("a100_sxm_80", 2090.2), ("b200", 330.6)],
)
def test_a_product_takes_what_the_multiprocessors_of_each_gpu_need(
    target: str, measured_us: float
) -> None:
    """Measured by NVIDIA: ai-dynamo/aiconfigurator, commit 095f58a, Apache-2.0."""
    prediction = Study(plan_of_text(PRODUCT), device_of_target(target)).prediction
    assert prediction is not None
    (kernel,) = prediction.kernels
    assert kernel.work.gpu.multiprocessors == device_of_target(target).cores
    assert kernel.seconds * 1e6 == pytest.approx(measured_us, rel=0.15)
    assert prediction.low_seconds <= measured_us * 1e-6 <= prediction.high_seconds
    # Only products were measured on the last two, and the interval says so.
    scaled = target in ("a100_sxm_80", "b200")
    width = log(prediction.high_seconds / prediction.step_seconds)
    assert (width > 0.4) == scaled
    assert any("were measured on this GPU" in text for text in prediction.assumptions) == (scaled)


def test_formulas_hold_the_figures_of_the_device() -> None:
    h200, h100, b200 = map(device_of_target, ("h200", "h100_sxm", "b200"))
    assert gpu_of(h200) == gpu_of(h100) == gpu_of(device_of_config(DEVICE)) == HOPPER
    assert b200 is not None
    larger = gpu_of(b200)
    assert larger.multiprocessors == b200.cores > HOPPER.multiprocessors
    assert larger.l2_bytes > HOPPER.l2_bytes
    assert larger.bandwidth > 1.5
    assert larger.peak > 2


def test_expectations_use_the_device_of_the_dump() -> None:
    """As `show --time` does, not the catalogue's figures of its target."""
    slow = DEVICE.replace("memory_bandwidth: 4814304000000", "memory_bandwidth: 481430400000")
    assert slow != DEVICE
    program = program_of(plan_of_text(COPY), target="h200", target_config=slow)
    device = device_of_config(slow)
    study = Study(program.plan, device)
    assert study.cost is not None
    floor = study.cost.floor_seconds
    assert floor == pytest.approx(2 * 4 * 2**24 / 481430400000)
    (violation,) = StepTimeAtMost(1e-6).check(program).violations
    assert study.prediction is not None
    assert study.prediction.text in violation.found


COPY = """HloModule s, is_scheduled=true
inside {
  a = f32[16777216]{0} parameter(0)
  ROOT b = f32[16777216]{0} negate(a)
}
ENTRY main {
  x = f32[16777216]{0} parameter(0)
  ROOT y = f32[16777216]{0} fusion(x), kind=kLoop, calls=inside
}
"""
