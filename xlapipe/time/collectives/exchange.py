"""The time of a collective: measured curves within a domain, datasheets between domains."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from xlapipe.devices.targets.device import Device, device_of_target
from xlapipe.devices.targets.network import Network
from xlapipe.plans.collectives import Collective
from xlapipe.time.collectives.collective_times import measured_curves, seconds_among
from xlapipe.time.collectives.layout import (
    GroupLayout,
    layout_of,
    leaving_bytes,
    size_of,
)

TABLE, DATASHEET = "table", "datasheet"
# Deviations of the logarithm of the time. Of sizes that the table leaves out, nine of ten are
# within 16 %, which is 1.6 deviations; numbers of GPUs between two of the table are within 36 %.
# L40S and RTX PRO 6000, both on PCIe, differ by up to a factor of 6 at the same share of the link:
# what connects the slots of a host decides. All others are assumed.
_TABLE_SPREAD, _BETWEEN_SPREAD, _OTHER_SPREAD = 0.1, 0.2, 0.4
_SLOTS_SPREAD, _NIC_SPREAD, _ASSUMED_SPREAD = 0.8, 0.3, 0.7
# No PCIe x16 of today's hosts is as fast, and no NVLink as slow.
_FASTEST_PCIE = 130e9
# What NCCL itself reckons with when it chooses a protocol (NVIDIA/nccl, src/graph/tuning.cc, commit
# 01afd20): seconds of a step over NVLink and over the network, and the share of the bandwidth, of
# LL128 and Simple. All ranks are in one ring, and only an all-reduce may use a tree.
_RING_STEPS = ((1.9e-6, 4.0e-6, 0.92), (3.4e-6, 9.6e-6, 1.0))
_TREE_STEPS = ((1.2e-6, 8.5e-6, 0.9 * 0.915), (28e-6, 50e-6, 0.9))
_NETWORK_OF_STEPS = 5e-6
_RINGS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "collective-broadcast": 1}
# The kinds of the table whose data move alike, the multiple of the size, and the GPUs.
_LIKE_A_PERMUTE = ("all-to-all", 2, 2)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The predicted time of one collective.

    Attributes:
      parts: seconds and reasons, whose sum is the time.
      basis: `table` or `datasheet`.
      spread: standard deviation of the logarithm of the time.
      assumption: of others than the very GPU, number and link, in words; empty if none.
    """

    parts: tuple[tuple[float, str], ...]
    basis: str
    spread: float
    assumption: str = ""

    @property
    def seconds(self) -> float:
        return sum(seconds for seconds, _ in self.parts)


@dataclass(frozen=True, slots=True)
class _Inside:
    """Time within a domain: of the smallest size, and of this one."""

    latency: float
    seconds: float
    basis: str
    spread: float
    text: str


def exchange_of(
    collective: Collective, topology: str | None, device: Device, network: Network
) -> Exchange | None:
    """The time of one execution; None if bytes, devices or the GPU's links are unknown."""
    size, layout = size_of(collective), layout_of(collective, topology, network)
    link = network.link_bytes_per_second or device.link_bandwidth
    if size is None or layout is None or link is None:
        return None
    inside = _inside(collective.kind, size, layout, device, link)
    if layout.nic_rate is None:
        parts = (
            (inside.latency, "latency"),
            (max(0.0, inside.seconds - inside.latency), f"{size / 1e6:,.2f} MB {inside.text}"),
        )
        return Exchange(parts, inside.basis, inside.spread, _assumed_inside(inside, layout))
    return _between(collective.kind, size, layout, network, inside)


def _between(
    kind: str, size: int, layout: GroupLayout, network: Network, inside: _Inside
) -> Exchange:
    """Time of a group of several domains: the slower of NICs and links, which work in a row."""
    assert layout.nic_rate is not None
    leaving = leaving_bytes(kind, size, layout)
    beside = f", shared by {layout.at_once} groups" * (layout.at_once > 1)
    by_nics = f"{leaving / 1e6:,.2f} MB between {layout.domains} domains at "
    by_nics += f"{layout.nic_rate / 1e9:,.4g} GB/s of NICs{beside}"
    within = inside.seconds - inside.latency if layout.inside > 1 else 0.0
    ways = []
    for latency, share, text in _ways(kind, layout, network):
        outside = leaving / layout.nic_rate / share
        slower = by_nics if outside >= within else f"{size / 1e6:,.2f} MB {inside.text}"
        ways.append(((latency, text), (max(outside, within), slower)))
    least = min(ways, key=lambda way: sum(seconds for seconds, _ in way))
    parts = ((inside.latency, "latency within a domain"), *least)
    spread = math.hypot(inside.spread, _ASSUMED_SPREAD if network.assumed else _NIC_SPREAD)
    text = "between hosts, by the datasheets of the network's NICs, which nothing was timed with"
    if network.assumed:
        text += f"; {network.name} is assumed to be the network (--network states another)"
    return Exchange(parts, DATASHEET, spread, text)


def _ways(kind: str, layout: GroupLayout, network: Network) -> Iterator[tuple[float, float, str]]:
    """Latency, share of the bandwidth and words of each algorithm and protocol of NCCL."""
    wait = network.latency_seconds - _NETWORK_OF_STEPS
    if kind not in _RINGS:
        yield network.latency_seconds, 1.0, "latency of one hop between domains"
        return
    turns = _RINGS[kind]
    between = turns * (layout.domains - 1)
    steps = turns * (layout.gpus - 1) - between
    text = f"latency of a ring: {steps:,} steps within domains, {between:,} between them"
    for near, far, share in _RING_STEPS:
        yield steps * near + between * max(near, far + wait), share, text
    if kind == "all-reduce":
        between = 2 * math.ceil(math.log2(layout.domains))
        steps = 2 * (layout.inside - 1)
        text = f"latency of a tree: {steps:,} steps within domains, {between:,} between them"
        for near, far, share in _TREE_STEPS:
            yield steps * near + between * max(near, far + wait), share, text


def _inside(kind: str, size: int, layout: GroupLayout, device: Device, link: float) -> _Inside:
    """Time among the group's GPUs of one domain; of two for a group with one in each."""
    gpus, times = max(2, layout.inside), 1.0
    if kind == "collective-permute":
        kind, times, gpus = _LIKE_A_PERMUTE
    elif kind == "collective-broadcast":
        kind, times = "all-gather", gpus / (gpus - 1)
    elif kind == "all-to-all":
        times = layout.inside / layout.gpus
    row = _reference(device.row, link, gpus)
    curves = measured_curves()[row][kind]
    latency = seconds_among(curves, gpus, 1.0)
    seconds = seconds_among(curves, gpus, times * size)
    rate = _link_of(row) / link
    is_measured = row == device.row and rate == 1
    text = f"among {gpus} GPUs as measured on {row}"
    if not is_measured:
        text += f", at {link / 1e9:,.0f} GB/s instead of {_link_of(row) / 1e9:,.0f}"
    spread = _TABLE_SPREAD if gpus in curves else _BETWEEN_SPREAD
    basis = TABLE
    if not is_measured or gpus > max(curves):
        basis, spread = DATASHEET, _OTHER_SPREAD
    if link < _FASTEST_PCIE and gpus > 2:
        spread = math.hypot(spread, _SLOTS_SPREAD)
    return _Inside(latency, latency + (seconds - latency) * rate, basis, spread, text)


def _reference(row: str | None, link: float, gpus: int) -> str:
    """The GPU of the table with the most similar link, timed among as many GPUs, itself first."""
    curves = measured_curves()

    def distance(name: str) -> tuple[float, int, bool]:
        most = max(curves[name]["all-reduce"])
        return abs(math.log(_link_of(name) / link)), max(0, gpus - most), name != row

    return min(curves, key=distance)


@cache
def _link_of(row: str) -> float:
    """Bytes per second of the links of a GPU of the table."""
    device = device_of_target(row)
    assert device is not None and device.link_bandwidth is not None
    return float(device.link_bandwidth)


def _assumed_inside(inside: _Inside, layout: GroupLayout) -> str:
    if inside.basis == TABLE:
        return f"within a host, from nccl-tests of this GPU {inside.text}"
    return f"among {layout.gpus} GPUs, from nccl-tests {inside.text}: not timed on these GPUs"
