"""Device of a GPU or TPU: bandwidth of its memory, and peaks by type.

A TPU's figures are those of its row of the catalogue. A GPU's come from a GpuTargetConfigProto in
text form. The configuration of an attached device has the
rates of its matrix units; for one without them the catalogue has the peaks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from xlapipe.devices.platforms import platform_of_config
from xlapipe.devices.platforms.textproto import TextProtoError, parse
from xlapipe.devices.targets.catalogue import row_named, row_of_device
from xlapipe.devices.targets.tpu_catalogue import TpuRow, tpu_catalogue

# XLA's primitive types that have a separate peak.
_TYPE_OF_KEY = {2: "s8", 11: "tf32", 12: "f64", 16: "bf16", 20: "f8", 32: "f4"}
_RATE = re.compile(
    r"key:\s*(?P<key>\d+)\s*value\s*\{\s*clock_rate_ghz:\s*(?P<clock>[\d.]+)"
    r"\s*units_per_core:\s*(?P<units>\d+)\s*ops_per_clock:\s*(?P<ops>\d+)\s*\}"
)
# The peak that bounds matrix products of a type without a separate peak.
_SAME_PEAK = {"f16": "bf16", "f32": "tf32", "u8": "s8", "c64": "tf32", "c128": "f64"}


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, or a TPU, as far as times depend on it.

    Attributes:
      name: as the device or the catalogue states it, e.g. `NVIDIA H200`.
      row: name of its row of the catalogue, which another GPU never has; None if it has none.
      cores: multiprocessors.
      bandwidth: bandwidth of device memory, in bytes per second.
      l2_bytes: size of the L2 cache.
      vector_flops: float32 operations per second outside the tensor cores.
      peak_flops: dense operations per second of the tensor cores, by type of the operands.
      peak_source: where `peak_flops` are from; empty if they are unknown.
      link_bandwidth: bytes per second in each direction to other GPUs of the host; None if unknown.
      platform: jax's name of its platform.
      clock_rate: of a multiprocessor, in Hz; 0 if unknown.
    """

    name: str
    row: str | None
    cores: int
    bandwidth: int
    l2_bytes: int
    vector_flops: float
    peak_flops: Mapping[str, float]
    peak_source: str = ""
    link_bandwidth: int | None = None
    platform: str = "cuda"
    clock_rate: float = 0.0

    @property
    def most_link_bandwidth(self) -> int | None:
        """Bytes per second that a device can send over all of its links; None if unknown."""
        return self.link_bandwidth

    def peak_of(self, element_type: str) -> float | None:
        """Peak of matrix products of operands of an HLO element type; None if unknown."""
        if element_type in self.peak_flops:
            return self.peak_flops[element_type]
        name = _SAME_PEAK.get(element_type, element_type)
        if name.startswith(("f8", "f4")):
            name = name[:2]
        return self.peak_flops.get(name)


# 8 × 128 lanes with four arithmetic units each.
_LANE_OPERATIONS = 8 * 128 * 4


@dataclass(frozen=True, kw_only=True)
class Tpu(Device):
    """A TPU; `link_bandwidth` is that of one link between chips, `cores` that of a device.

    Attributes:
      matrix_flops: bfloat16 operations per second of the matrix units at the compiler's clock.
      matrix_side, vmem_bytes, grid_dimensions, devices_per_chip, wraps_from, host_bandwidth,
        slice_bandwidth: as of `TpuRow`.
    """

    matrix_flops: float
    matrix_side: int
    vmem_bytes: int
    grid_dimensions: int
    devices_per_chip: int
    wraps_from: int
    host_bandwidth: int
    slice_bandwidth: int

    @property
    def most_link_bandwidth(self) -> int | None:
        return 2 * self.grid_dimensions * (self.link_bandwidth or 0) or None


def _tpu(row: TpuRow) -> Tpu:
    peaks = {"bf16": row.bf16_peak, "s8": row.int8_peak, "f8": row.fp8_peak}
    units = row.cores_per_device * row.matrix_units
    return Tpu(
        name=row.description,
        row=row.name,
        cores=row.cores_per_device,
        bandwidth=row.hbm_bandwidth,
        l2_bytes=0,
        vector_flops=float(row.cores_per_device * row.clock_hz * _LANE_OPERATIONS),
        peak_flops={name: float(peak) for name, peak in peaks.items() if peak},
        peak_source="jax's tpu_info",
        link_bandwidth=row.link_bandwidth,
        platform="tpu",
        matrix_flops=2.0 * units * row.matrix_side**2 * row.clock_hz,
        matrix_side=row.matrix_side,
        vmem_bytes=row.vmem_bytes,
        grid_dimensions=row.grid_dimensions,
        devices_per_chip=row.devices_per_chip,
        wraps_from=row.wraps_from,
        host_bandwidth=row.host_bandwidth,
        slice_bandwidth=row.slice_bandwidth,
    )


@cache
def device_of_config(config_text: str) -> Device | None:
    """The GPU or TPU of a configuration in text form; None if it is neither.

    Its peaks and links are those of the catalogue's row, if the text has none and the GPU a row.
    """
    try:
        fields = parse(config_text)
        if (row := tpu_catalogue().get(str(fields.get("generation", "")))) is not None:
            return _tpu(row)
        device: Any = fields.get("gpu_device_info", {})
        bandwidth = int(device["memory_bandwidth"])
        cores = int(device["core_count"])
        clock = float(device.get("clock_rate_ghz", 0))
        vector = 2e9 * cores * int(device.get("fpus_per_core", 0)) * clock
        l2_bytes = int(device.get("l2_cache_size", 0))
    except (TextProtoError, KeyError, TypeError, ValueError):
        return None
    if bandwidth <= 0 or cores <= 0:
        return None
    name = str(fields.get("device_description_str") or device.get("name") or "")
    gpu = row_of_device(name, cores)
    rates, source = _matrix_rates(config_text, cores), "rates of the configuration's matrix units"
    if not rates and gpu is not None:
        rates, source = dict(gpu.peak_flops), gpu.peak_source
    return Device(
        name=name,
        row=gpu.name if gpu is not None else None,
        cores=cores,
        bandwidth=bandwidth,
        l2_bytes=l2_bytes,
        vector_flops=vector,
        peak_flops=rates,
        peak_source=source if rates else "",
        link_bandwidth=gpu.link_bandwidth if gpu is not None else None,
        platform=platform_of_config(config_text).name,
        clock_rate=1e9 * clock,
    )


def device_of_target(name: str) -> Device | None:
    """The GPU or TPU of the catalogue with this name; None if it has none."""
    if (tpu := tpu_catalogue().get(name)) is not None:
        return _tpu(tpu)
    row = row_named(name)
    return device_of_config(row.config_text) if row is not None else None


def _matrix_rates(config_text: str, cores: int) -> dict[str, float]:
    """Dense operations per second of the matrix units, by type."""
    start = config_text.find("matrix_unit_description")
    return {
        _TYPE_OF_KEY[key]: 2e9
        * cores
        * int(rate["units"])
        * int(rate["ops"])
        * float(rate["clock"])
        for rate in (_RATE.finditer(config_text, start) if start >= 0 else ())
        if (key := int(rate["key"])) in _TYPE_OF_KEY
    }
