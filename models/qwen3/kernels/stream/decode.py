"""A decode step of one sequence: a kernel for all layers, then the output head."""

import jax
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.matvec import norm_matvec
from models.qwen3.kernels.persistent import decode as small
from models.qwen3.kernels.persistent.sizes import has_small_sizes
from models.qwen3.kernels.stream.kernel import decode_layers
from models.qwen3.kernels.stream.sizes import Sizes
from models.qwen3.modules.cache import Cache
from models.qwen3.modules.model import Qwen3


def decode_persistently(
    config: Qwen3Config,
    model: Qwen3,
    cache: Cache,
    token_ids: Int[Array, "1"],
    positions: Int[Array, "1"],
) -> tuple[Float[Array, "1 V"], Cache]:
    """Logits of the next token, float32, and the cache, written in place.

    The smallest model has a kernel of its own, in which its few weights wait in registers.
    """
    if has_small_sizes(config):
        return small.decode_persistently(model, cache, token_ids, positions)
    caches = [{name: jax.new_ref(leaf) for name, leaf in layer.items()} for layer in cache]
    with jax.named_scope("layers"):
        x = decode_layers(
            [small.arrays_of(*pair) for pair in zip(model.layers, caches, strict=True)],
            model.embed.weight[...],
            small.frequencies_of(model.head_dim, model.rope_theta),
            token_ids,
            positions,
            sizes=Sizes.of(config, cache[0]["k"].shape[2]),
        )
    norm = model.final_norm
    with jax.named_scope("lm_head"):
        logits = norm_matvec(x, norm.scale[...], model.head_weight, eps=norm.eps)
    written = [{name: jax.freeze(ref) for name, ref in layer.items()} for layer in caches]
    return logits[None], written
