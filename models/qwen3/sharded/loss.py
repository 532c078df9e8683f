"""Cross-entropy without logits of all tokens. Runs inside `jax.shard_map`."""

from functools import partial
from math import gcd

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.norm import rms_norm
from models.qwen3.sharded.forward import Weights, embed, layers
from models.qwen3.sharded.gathered_weight import gathered
from models.qwen3.sharded.weight_layout import FSDP, TENSOR, TOKENS_AT_ONCE


def mean_loss(
    params: Weights,
    token_ids: Int[Array, "B T"],
    targets: Int[Array, "B t"],
    config: Qwen3Config,
    *,
    unrolled: bool = False,
) -> Float[Array, ""]:
    """Mean negative log likelihood over all tokens with a target; the same on all devices.

    Args:
      token_ids: all tokens of this device's sequences.
      targets: ids to predict, for this device's tokens; negative for none.
    """
    with jax.named_scope("embed"):
        x = embed(params["embed"], token_ids, config.dtype)
    x = layers(x, params["layers"], config, unrolled=unrolled)
    with jax.named_scope("final_norm"):
        x = rms_norm(x, params["final_norm"], config.rms_norm_eps)
    with jax.named_scope("lm_head"):
        head = params["embed" if config.tie_word_embeddings else "lm_head"]
        total = total_loss(x.reshape(-1, x.shape[-1]), targets.reshape(-1), head, config.dtype)
        target_count = jax.lax.psum(jnp.sum(targets >= 0), (FSDP, TENSOR))
        mean: Array = jax.lax.psum(total, FSDP) / target_count
        return mean


def total_loss(
    x: Float[Array, "t D"], targets: Int[Array, " t"], head: Float[Array, "d V"], dtype: str
) -> Float[Array, ""]:
    """Negative log likelihood, summed over the tokens of all devices of `tensor`.

    V is split over `tensor`: a device has a part of each token's logits, and maxima and sums are
    reduced across devices. The backward pass recomputes the logits.
    """
    devices = jax.lax.axis_size(TENSOR)
    at_once = gcd(x.shape[0], max(1, TOKENS_AT_ONCE // devices))
    # In float32, so that the gradients of the parts are summed in float32.
    columns = gathered(head, 0, dtype).astype(jnp.float32)
    first = jax.lax.axis_index(TENSOR) * columns.shape[1]

    @partial(jax.checkpoint, prevent_cse=False)
    def of_part(part: tuple[Array, Array]) -> Array:
        tokens, target_ids = (jax.lax.all_gather(array, TENSOR, tiled=True) for array in part)
        logits = jnp.einsum(
            "TD,DV->TV", tokens, columns.astype(tokens.dtype), preferred_element_type=jnp.float32
        )
        highest = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), TENSOR)
        exponentials = jnp.exp(logits - highest[:, None]).sum(-1)
        local_ids = target_ids - first
        is_local = (local_ids >= 0) & (local_ids < columns.shape[1])
        index = jnp.clip(local_ids, 0, columns.shape[1] - 1)
        chosen = jnp.take_along_axis(logits, index[:, None], axis=1)[:, 0]
        # One all-reduce for both.
        exponentials, chosen = jax.lax.psum((exponentials, jnp.where(is_local, chosen, 0)), TENSOR)
        losses = jnp.log(exponentials) + highest - chosen
        part_loss: Array = jnp.sum(jnp.where(target_ids >= 0, losses, 0))
        return part_loss

    parts = jax.lax.map(
        of_part, (x.reshape(-1, at_once, x.shape[-1]), targets.reshape(-1, at_once))
    )
    # The sum is equal on all devices of `tensor`; pmean declares it replicated.
    total: Array = jax.lax.pmean(parts.sum(), TENSOR)
    return total
