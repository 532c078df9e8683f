"""The device of the steps of a generation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from models.qwen3.argument_bytes import cache_bytes
from models.qwen3.checkpoint.load_params import GPU_PIECE_BYTES, GPU_THREADS, load_params
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.modules.cache import Cache
from models.qwen3.params import Params

_COPIED_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class JaxDevice:
    """A device of jax. Puts the arguments of steps there."""

    device: jax.Device

    @property
    def platform(self) -> str:
        platform: str = self.device.platform
        return platform

    @property
    def device_kind(self) -> str:
        kind: str = self.device.device_kind
        return kind

    def memory_stats(self) -> Mapping[str, int] | None:
        """Bytes in use, their peak and limit, by jax's names; None if not reported."""
        stats: Mapping[str, int] | None = self.device.memory_stats()
        return stats

    def put(
        self, state: Any, token_ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> tuple[Any, Any, Any]:
        """The state of a batch and its prompts."""
        on_device: tuple[Any, Any, Any]
        on_device = jax.device_put((state, token_ids, lengths), self.device)
        return on_device

    def empty_cache(self, config: Qwen3Config, sizes: GenerationSizes) -> Cache:
        """A zeroed cache, allocated leaf by leaf.

        One small program fills all leaves of a large cache. Compiling it takes longer than copying
        the zeros of a small one.
        """
        shape = config.cache_shape(batch=sizes.batch, cache_length=sizes.cache_length)
        total_bytes = cache_bytes(config, batch=sizes.batch, cache_length=sizes.cache_length)
        zeros: Callable[[], jax.Array]
        if self.platform == "gpu" and total_bytes <= _COPIED_CACHE_BYTES:
            zeros = partial(jax.device_put, np.zeros(shape, jnp.dtype(config.dtype)), self.device)
        else:
            zeros = partial(jnp.zeros, shape, config.dtype, device=self.device)
        return [{name: zeros() for name in ("k", "v")} for _ in range(config.num_hidden_layers)]

    def load_params(
        self, checkpoint: Path, config: Qwen3Config, on_leaf: Callable[[str], None]
    ) -> Params:
        """The weights of a checkpoint, as `checkpoint.load_params` loads them."""
        how = (
            {}
            if self.platform == "cpu"
            else {"threads": GPU_THREADS, "piece_bytes": GPU_PIECE_BYTES}
        )
        return load_params(checkpoint, config, device=self.device, on_leaf=on_leaf, **how)
