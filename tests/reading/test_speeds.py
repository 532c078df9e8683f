"""Speeds of GPUs: from the catalogue and from a device's configuration."""

from importlib.resources import files

import pytest

from xlapipe.targets.catalogue import catalogue
from xlapipe.targets.speeds import speeds_of_config, speeds_of_target

DEVICE = (files("xlapipe") / "targets" / "h200_device.txtpb").read_text()


@pytest.mark.parametrize("name", [row.name for row in catalogue() if row.unsupported is None])
def test_every_target_has_speeds_with_a_source(name: str) -> None:
    speeds = speeds_of_target(name)
    assert speeds is not None
    assert speeds.peak_source
    assert speeds.l2_bytes > 0
    peaks = [speeds.peak_of(kind) for kind in ("f64", "f32", "bf16", "s8")]
    assert None not in peaks
    assert peaks == sorted(peaks)
    assert speeds.peak_of("f16") == speeds.peak_of("bf16")
    if speeds.peak_of("f8e4m3fn") is not None:
        assert speeds.peak_of("f8e5m2") == 2 * speeds.peak_of("bf16")


def test_device_reports_its_own_bandwidth_cache_and_rates() -> None:
    device, row = speeds_of_config(DEVICE), speeds_of_target("h200")
    assert device is not None
    assert row is not None
    assert (device.bandwidth, device.l2_bytes) == (4_814_304_000_000, 62_914_560)
    # 132 cores × 4 units × 512 multiply-adds × 1.83 GHz.
    assert device.peak_of("bf16") == pytest.approx(989.2e12, rel=1e-4)
    for kind in ("f64", "f32", "bf16", "f8e4m3fn", "s8"):
        assert device.peak_of(kind) == pytest.approx(row.peak_of(kind))


def test_configuration_without_rates_has_the_peaks_of_its_row() -> None:
    row = next(row for row in catalogue() if row.name == "a100_sxm_80")
    speeds = speeds_of_config(row.target().config_text, "a100_sxm_80")
    assert speeds == speeds_of_target("a100_sxm_80")
    unknown = speeds_of_config(row.target().config_text, "other")
    assert unknown is not None
    assert (unknown.peak_of("bf16"), unknown.peak_source) == (None, "")
    attached = speeds_of_config(row.target().config_text, "a100_sxm_80_attached")
    assert attached == speeds


@pytest.mark.parametrize("text", ["", "gpu_device_info { core_count: 3 }", "not a proto {{"])
def test_configuration_without_bandwidth_has_no_speeds(text: str) -> None:
    assert speeds_of_config(text) is None
