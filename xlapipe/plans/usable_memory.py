"""What a program may use of a device's memory."""

from dataclasses import dataclass

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.devices.targets.catalogue import name_of_target
from xlapipe.devices.targets.outside_memory import measured_outside
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.plans import Plan
from xlapipe.plans.outside_plan import OutsidePlan, outside_plan


@dataclass(frozen=True, kw_only=True)
class UsableMemory:
    """The memory of one device, and what a program may use of it.

    Attributes:
      device_memory_bytes: all of it.
      usable_bytes: on a TPU what XLA's compiler leaves to a program; elsewhere the share of the
        device's memory that the process may use, of the memory that CUDA reports if it was
        measured.
      outside: memory outside the plan; None on a TPU.
    """

    device_memory_bytes: int
    usable_bytes: int
    outside: OutsidePlan | None


def usable_memory(
    target: Target, plan: Plan, *, libtpu: str | None = None, memory_fraction: float | None = None
) -> UsableMemory:
    """What a program with this plan may use on a device.

    Args:
      libtpu: version of libtpu, on a TPU.
      memory_fraction: the share of the device's memory that counts as usable; None for jax's on
        GPUs, and for all that XLA's compiler leaves to a program on TPUs.
    """
    tpu = tpu_catalogue().get(target.name)
    if tpu is not None:
        usable = int(tpu.usable_bytes(libtpu) * (memory_fraction or 1))
        return UsableMemory(
            device_memory_bytes=target.device_memory_bytes, usable_bytes=usable, outside=None
        )
    fraction = memory_fraction or DEFAULT_MEMORY_FRACTION
    outside = None
    usable = int(target.device_memory_bytes * fraction)
    if platform_named(target.platform).memory_limit is not None:
        outside = outside_plan(plan, measured_outside(name_of_target(target)))
        usable = outside.usable_bytes(target.device_memory_bytes, fraction)
    return UsableMemory(
        device_memory_bytes=target.device_memory_bytes, usable_bytes=usable, outside=outside
    )
