"""A GPU or TPU to compile for.

Targets come from `xlapipe.devices.targets.catalogue` or `xlapipe.devices.targets.target_config`.
"""

import re
from dataclasses import dataclass
from typing import Literal

Source = Literal["catalogue", "file", "attached"]

# ptxas of CUDA 13 supports nothing older, and XLA's own message about that is hard to understand.
OLDEST_COMPUTE_CAPABILITY = (7, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU or TPU to compile for.

    Attributes:
      name: part of folder names under `hlo_dumps/`: letters, digits, `.`, `_` and `-`.
      description: the device's name, e.g. `NVIDIA H200 141GB HBM3e`.
      config_text: a GpuTargetConfigProto in text form, or a TPU's configuration in the same form.
      compute_capability: compute capability of a GPU, e.g. `9.0`; empty for a TPU.
      device_memory_bytes: the memory of one device.
      source: where the configuration came from.
      platform: jax's name of the vendor's platform; see `xlapipe.devices.platforms`.
    """

    name: str
    description: str
    config_text: str
    compute_capability: str
    device_memory_bytes: int
    source: Source
    platform: str = "cuda"

    @property
    def core_count(self) -> int | None:
        """Multiprocessors of a GPU; None if the configuration has no such number."""
        match = re.search(r"\bcore_count: (\d+)", self.config_text)
        return int(match[1]) if match else None
