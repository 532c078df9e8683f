"""The device of steps that were built in advance. Imports no jax."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from models.qwen3.checkpoint.map_leaves import dtype_named, map_leaves
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.compiled_steps import OnLeaf, StepDevice
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.generation.step_arrays import (
    LENGTHS,
    TOKEN_IDS,
    by_path,
    cache_arrays,
    params_path,
)
from xlapipe import LoadedStep

# Arrays on the device, by their paths.
Arrays: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class LoadedDevice(StepDevice):
    """The device of a loaded step; arguments are arrays by path, as `prebuilt_step` takes them.

    Attributes:
      prompts: the step that takes prompts, and all that the other one takes.
    """

    prompts: LoadedStep

    @property
    def platform(self) -> str:
        platform: str = self.prompts.device.platform
        return platform

    @property
    def device_kind(self) -> str:
        kind: str = self.prompts.device.device_kind
        return kind

    def memory_stats(self) -> Mapping[str, int]:
        stats: Mapping[str, int] = self.prompts.device.memory_stats()
        return stats

    def put(
        self, state: Any, token_ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> tuple[Arrays, Any, Any]:
        put = self.prompts.put
        on_device = {path: put(path, array) for path, array in by_path("state", state)}
        return on_device, put(TOKEN_IDS, token_ids), put(LENGTHS, lengths)

    def empty_cache(self, config: Qwen3Config, sizes: GenerationSizes) -> Arrays:
        """A zeroed cache. All leaves are copied from the same zeros, which take no memory."""
        shape = config.cache_shape(batch=sizes.batch, cache_length=sizes.cache_length)
        zeros = np.zeros(shape, dtype_named(config.dtype))
        return {path: self.prompts.put(path, zeros) for path in cache_arrays(config, sizes)}

    def load_params(self, checkpoint: Path, config: Qwen3Config, on_leaf: OnLeaf) -> Arrays:
        def put(leaf_path: str, array: npt.NDArray[Any]) -> Any:
            return self.prompts.put(params_path(leaf_path), array)

        loaded = map_leaves(checkpoint, config, put, on_leaf=on_leaf)
        return {params_path(path): array for path, array in loaded.items()}
