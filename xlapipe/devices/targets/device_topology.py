"""The topology of any platform: its text depends on the vendor."""

from collections.abc import Mapping
from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.textproto import parse
from xlapipe.devices.targets.chip_grid import ChipGrid
from xlapipe.devices.targets.topology import Topology

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
    config: Any = parse(config_text or "").fields
    return {
        "dimensions": int(config["grid_dimensions"]),
        "devices_per_chip": int(config["devices_per_chip"]),
    }
