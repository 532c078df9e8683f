"""Speeds of a GPU: bandwidth of its memory, size of its L2 cache, and peaks by type.

They come from a GpuTargetConfigProto in text form. The configuration of an attached device has the
rates of its matrix units; for one without them the catalogue has the peaks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from xlapipe.platforms.textproto import TextProtoError, parse
from xlapipe.targets.catalogue import CatalogueRow, catalogue

# XLA's primitive types that have a peak of their own.
_TYPE_OF_KEY = {2: "s8", 11: "tf32", 12: "f64", 16: "bf16", 20: "f8", 32: "f4"}
_RATE = re.compile(
    r"key:\s*(?P<key>\d+)\s*value\s*\{\s*clock_rate_ghz:\s*(?P<clock>[\d.]+)"
    r"\s*units_per_core:\s*(?P<units>\d+)\s*ops_per_clock:\s*(?P<ops>\d+)\s*\}"
)
# The peak that bounds matrix products of a type without a peak of its own.
_SAME_PEAK = {"f16": "bf16", "f32": "tf32", "u8": "s8", "c64": "tf32", "c128": "f64"}


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What bounds a kernel from below on one GPU.

    Attributes:
      bandwidth: of device memory, in bytes per second.
      l2_bytes: size of the L2 cache.
      vector_flops: float32 operations per second outside the tensor cores.
      peak_flops: dense operations per second of the tensor cores, by type of the operands.
      peak_source: where `peak_flops` are from; empty if they are unknown.
      link_bandwidth: bytes per second in each direction to other GPUs; None if unknown.
    """

    bandwidth: int
    l2_bytes: int
    vector_flops: float
    peak_flops: Mapping[str, float]
    peak_source: str = ""
    link_bandwidth: int | None = None

    def peak_of(self, element_type: str) -> float | None:
        """Peak of matrix products of operands of an HLO element type; None if unknown."""
        name = _SAME_PEAK.get(element_type, element_type)
        if name.startswith(("f8", "f4")):
            name = name[:2]
        return self.peak_flops.get(name)


@cache
def speeds_of_config(config_text: str, target_name: str = "") -> Speeds | None:
    """The speeds in a GpuTargetConfigProto in text form.

    Args:
      target_name: the name of the target, for its peaks in the catalogue.

    Returns:
      None if the text has no bandwidth.
    """
    try:
        device: Any = parse(config_text).fields.get("gpu_device_info", {})
        bandwidth = int(device["memory_bandwidth"])
        cores = int(device["core_count"])
        clock = float(device.get("clock_rate_ghz", 0))
        vector = 2e9 * cores * int(device.get("fpus_per_core", 0)) * clock
        l2_bytes = int(device.get("l2_cache_size", 0))
    except (TextProtoError, KeyError, TypeError, ValueError):
        return None
    if bandwidth <= 0:
        return None
    rates, source = _matrix_rates(config_text, cores), "rates of the configuration's matrix units"
    row = _row(target_name)
    if not rates and row is not None:
        rates, source = dict(row.peak_flops), row.peak_source
    return Speeds(
        bandwidth=bandwidth,
        l2_bytes=l2_bytes,
        vector_flops=vector,
        peak_flops=rates,
        peak_source=source if rates else "",
        link_bandwidth=row.link_bandwidth if row is not None else None,
    )


def speeds_of_target(name: str) -> Speeds | None:
    """The speeds of a target of the catalogue; None if it is not in the catalogue."""
    row = _row(name)
    if row is None:
        return None
    return Speeds(
        bandwidth=row.memory_bandwidth,
        l2_bytes=row.l2_cache_size,
        vector_flops=2e9 * row.core_count * row.fpus_per_core * row.clock_rate_ghz,
        peak_flops=row.peak_flops,
        peak_source=row.peak_source,
        link_bandwidth=row.link_bandwidth,
    )


def _row(name: str) -> CatalogueRow | None:
    """The row of a target; an attached device's name begins with that of its row."""
    rows = {row.name: row for row in catalogue()}
    if name in rows:
        return rows[name]
    begins = [known for known in rows if name.startswith(f"{known}_")]
    return rows[max(begins, key=len)] if begins else None


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
