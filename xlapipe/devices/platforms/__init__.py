"""The differences between vendors of accelerators, as data: one module per vendor.

The other packages only use `Platform`. To add a vendor, write one module here that defines
a `Platform`, and list it in `PLATFORMS`. Nothing in this package imports jax.
"""

from xlapipe.devices.platforms.nvidia import NVIDIA
from xlapipe.devices.platforms.platform import Platform
from xlapipe.devices.platforms.tpu import TPU

__all__ = ["NVIDIA", "PLATFORMS", "TPU", "Platform", "platform_named"]

PLATFORMS: tuple[Platform, ...] = (NVIDIA, TPU)


def platform_named(name: str) -> Platform:
    """The platform that jax calls `name`, for instance `cuda`.

    Raises:
      KeyError: no such platform; names come from targets and manifests, not from users.
    """
    return {platform.name: platform for platform in PLATFORMS}[name]
