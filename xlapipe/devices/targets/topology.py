"""The hosts and the devices of each that a mesh covers; its text depends on the vendor."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.textproto import parse
from xlapipe.devices.targets.chip_grid import ChipGrid
from xlapipe.errors import XlapipeError

_TEXT = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
# The number in most hosts whose GPUs are connected by NVLink.
GPUS_PER_HOST = 8
# The compiler needs memory per device; a typing error should not exhaust it.
_MAX_DEVICES = 65_536


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts` machines with `gpus` GPUs each.

    A mesh is filled with devices in row-major order, host by host, so its last axes are within a
    host.
    """

    hosts: int
    gpus: int

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """The topology in a text of the form HOSTSxGPUS.

        >>> Topology.parse("8x4")
        Topology(hosts=8, gpus=4)

        Raises:
          XlapipeError: the text has another form, or there are too many devices.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise XlapipeError(
                f"topology {text!r}: expected HOSTSxGPUS with two positive numbers; fix: write "
                "e.g. 1x2 for one host with two GPUs, or 8x8 for eight hosts with eight GPUs each"
            )
        topology = cls(int(match[1]), int(match[2]))
        if topology.device_count > _MAX_DEVICES:
            raise XlapipeError(
                f"topology {text}: expected at most {_MAX_DEVICES:,} devices, found "
                f"{topology.device_count:,}; fix: use fewer hosts or GPUs"
            )
        return topology

    @classmethod
    def of_devices(cls, count: int) -> "Topology":
        """One host for up to 8 devices, hosts of 8 for more.

        Raises:
          XlapipeError: more than 8 devices that do not fill such hosts.
        """
        if count <= GPUS_PER_HOST:
            return cls(1, count)
        if count % GPUS_PER_HOST:
            raise XlapipeError(
                f"{count} devices do not fill hosts of {GPUS_PER_HOST} GPUs; "
                "fix: pass --topology HOSTSxGPUS"
            )
        return cls(count // GPUS_PER_HOST, GPUS_PER_HOST)

    @property
    def device_count(self) -> int:
        return self.hosts * self.gpus

    def __str__(self) -> str:
        return f"{self.hosts}x{self.gpus}"


DeviceTopology = Topology | ChipGrid


def parse_topology(text: str, *, platform: str, config_text: str | None) -> DeviceTopology:
    """The topology in a text: hosts × GPUs, or a grid of TPU chips.

    Args:
      platform: jax's name of the platform.
      config_text: the target's configuration; None for an attached GPU.

    Raises:
      XlapipeError: the text is not a topology of that platform.
    """
    if not platform_named(platform).has_chip_grid:
        return Topology.parse(text)
    return ChipGrid.parse(text, **_chips(config_text))


def topology_of_devices(count: int, *, platform: str, config_text: str | None) -> DeviceTopology:
    """The default topology for a number of devices.

    Raises:
      XlapipeError: there is no default for that number.
    """
    if not platform_named(platform).has_chip_grid:
        return Topology.of_devices(count)
    return ChipGrid.of_devices(count, **_chips(config_text))


def _chips(config_text: str | None) -> Mapping[str, int]:
    """The arguments of ChipGrid that a TPU's configuration holds."""
    config: Any = parse(config_text or "")
    return {
        "dimensions": int(config["grid_dimensions"]),
        "devices_per_chip": int(config["devices_per_chip"]),
    }
