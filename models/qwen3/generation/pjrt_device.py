"""A device of PJRT's client, for steps that were built in advance. Imports no jax."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from models.qwen3.checkpoint.map_leaves import dtype_named, map_leaves
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.compiled_steps import OnLeaf, StepDevice
from models.qwen3.generation.device_protocols import PutDevice
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.generation.step_arrays import by_path, cache_arrays, params_path

# Arrays on the device, by their paths.
Arrays: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class PjrtDevice(StepDevice):
    """A device of PJRT's client; arguments are arrays by path, as `prebuilt_step` takes them."""

    device: PutDevice

    @property
    def platform(self) -> str:
        return self.device.platform

    @property
    def device_kind(self) -> str:
        return self.device.device_kind

    def memory_stats(self) -> Mapping[str, int]:
        return self.device.memory_stats()

    def put(
        self, state: Any, token_ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> tuple[Arrays, Any, Any]:
        put = self.device.put
        on_device = {path: put(array) for path, array in by_path("state", state)}
        return on_device, put(token_ids), put(lengths)

    def empty_cache(self, config: Qwen3Config, sizes: GenerationSizes) -> Arrays:
        """A zeroed cache. All leaves are copied from the same zeros, which take no memory."""
        shape = config.cache_shape(batch=sizes.batch, cache_length=sizes.cache_length)
        zeros = np.zeros(shape, dtype_named(config.dtype))
        return {path: self.device.put(zeros) for path in cache_arrays(config, sizes)}

    def load_params(self, checkpoint: Path, config: Qwen3Config, on_leaf: OnLeaf) -> Arrays:
        loaded = map_leaves(checkpoint, config, self.device.put, on_leaf=on_leaf)
        return {params_path(path): array for path, array in loaded.items()}
