"""KV caches, and writes into them in place.

Two forms:
- contiguous: per layer `{"k": [B, K, S, H], "v": [B, K, S, H]}`; a sequence's token at position p
  is in slot p. Used by prefill and decode. Heads come before slots because batched gemms read them
  in that order: with [B, S, K, H], jax 0.10.2 transposed whole caches.
- paged: one array [2, blocks, block size, K, H], keys then values; slot s of the flattened blocks
  is (s // block size, s % block size). Used by the step of reference dump 003.

Every write is a scatter of the new rows. If the cache is donated, XLA scatters in place.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config

LayerCache: TypeAlias = dict[str, Array]
Cache: TypeAlias = list[LayerCache]


def init_cache(config: Qwen3Config, *, batch: int, cache_length: int) -> Cache:
    """A zeroed contiguous cache in the config's dtype."""
    shape = config.cache_shape(batch=batch, cache_length=cache_length)
    dtype = jnp.dtype(config.dtype)
    return [
        {"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)}
        for _ in range(config.num_hidden_layers)
    ]


def write_positions(
    cache: Float[Array, "B K S H"],
    new: Float[Array, "B T K H"],
    positions: Int[Array, "B T"],
) -> Float[Array, "B K S H"]:
    """Writes each token's row at its position; a position outside [0, S) writes nothing.

    The positions of one sequence must differ from one another.
    """
    # Indexes every leading axis. If heads were a window of the scatter instead, XLA would move the
    # indexed axes to the front, which transposes the whole cache.
    batch = jnp.arange(cache.shape[0])[:, None, None]
    heads = jnp.arange(cache.shape[1])[None, :, None]
    return cache.at[batch, heads, positions[:, None, :]].set(
        jnp.swapaxes(new, 1, 2), mode="drop", unique_indices=True, wrap_negative_indices=False
    )


def write_slots(
    pages: Float[Array, "2 blocks block_size K H"],
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int[Array, " T"],
) -> Float[Array, "2 blocks block_size K H"]:
    """Writes k and v of each token at its slot; a slot outside the pages writes nothing.

    Slots inside the pages must differ from one another.
    """
    with jax.named_scope("write_slots"):
        flat = pages.reshape(2, -1, *pages.shape[3:])
        flat = flat.at[:, slots].set(
            jnp.stack([k, v]), mode="drop", unique_indices=True, wrap_negative_indices=False
        )
        return flat.reshape(pages.shape)
