"""Device of a GPU: bandwidth of its memory, size of its L2 cache, and peaks by type.

They come from a GpuTargetConfigProto in text form. The configuration of an attached device has the
rates of its matrix units; for one without them the catalogue has the peaks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from xlapipe.devices.platforms.textproto import TextProtoError, parse
from xlapipe.devices.targets.catalogue import row_named, row_of_device

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
    """A GPU, as far as times depend on it.

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

    def peak_of(self, element_type: str) -> float | None:
        """Peak of matrix products of operands of an HLO element type; None if unknown."""
        if element_type in self.peak_flops:
            return self.peak_flops[element_type]
        name = _SAME_PEAK.get(element_type, element_type)
        if name.startswith(("f8", "f4")):
            name = name[:2]
        return self.peak_flops.get(name)


@cache
def device_of_config(config_text: str) -> Device | None:
    """The GPU in a GpuTargetConfigProto in text form; None if the text has no bandwidth.

    Its peaks and links are those of the catalogue's row, if the text has none and the GPU a row.
    """
    try:
        fields = parse(config_text).fields
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
    row = row_of_device(name, cores)
    rates, source = _matrix_rates(config_text, cores), "rates of the configuration's matrix units"
    if not rates and row is not None:
        rates, source = dict(row.peak_flops), row.peak_source
    return Device(
        name=name,
        row=row.name if row is not None else None,
        cores=cores,
        bandwidth=bandwidth,
        l2_bytes=l2_bytes,
        vector_flops=vector,
        peak_flops=rates,
        peak_source=source if rates else "",
        link_bandwidth=row.link_bandwidth if row is not None else None,
    )


def device_of_target(name: str) -> Device | None:
    """The GPU of the catalogue with this name; None if it has none."""
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
