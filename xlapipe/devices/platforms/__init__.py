"""The differences between vendors of accelerators, as data: one module per vendor.

The other packages only use `Platform`. To add a vendor, write one module here that defines
a `Platform`, and list it in `PLATFORMS`. Nothing in this package imports jax.
"""

import re

from xlapipe.devices.platforms.amd import AMD
from xlapipe.devices.platforms.nvidia import NVIDIA
from xlapipe.devices.platforms.platform import Platform
from xlapipe.devices.platforms.tpu import TPU

__all__ = ["AMD", "NVIDIA", "PLATFORMS", "TPU", "Platform", "platform_named", "platform_of_config"]

PLATFORMS: tuple[Platform, ...] = (NVIDIA, AMD, TPU)
_CONFIG_NAME = re.compile(r'^\s*platform_name:\s*"(\w+)"', re.MULTILINE)


def platform_named(name: str) -> Platform:
    """The platform that jax calls `name`, for instance `cuda`.

    Raises:
      KeyError: no such platform; names come from targets and manifests, not from users.
    """
    return {platform.name: platform for platform in PLATFORMS}[name]


def platform_of_config(text: str) -> Platform:
    """The platform that a GpuTargetConfigProto in text form names; NVIDIA's if it names none.

    Raises:
      KeyError: it names another one.
    """
    match = _CONFIG_NAME.search(text)
    if match is None:
        return NVIDIA
    return {platform.config_name or "": platform for platform in PLATFORMS}[match[1]]
