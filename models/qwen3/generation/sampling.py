"""Samples the next token of each sequence from its logits, on the device.

Sorting is the expensive part, so that the number of tokens to sort is static. `candidates` is 1 for
greedy (an argmax), None to sample the whole vocabulary with temperature only (no sorting), or the
number of most probable tokens that top-k and top-p select from. Temperature, top-k, top-p and seed
are arrays, so that one executable serves all their values.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

Draw: TypeAlias = Mapping[str, Any]


def next_tokens(
    logits: Float[Array, "B V"],
    draw: Draw,
    positions: Int[Array, " B"],
    *,
    candidates: int | None,
) -> Int[Array, " B"]:
    """Samples a token for each sequence; of equal logits, the lowest id comes first.

    A sample depends on the sequence's own logits, the seed, and the sequence's index and position,
    but not on the rest of the batch.

    Args:
      logits: float32.
      candidates: static, see the module's docstring. Top-k must not exceed it.
    """
    with jax.named_scope("sample"):
        # For one sequence, XLA otherwise fuses the head's gemm with the sampling, as a product of
        # vectors that has lost its name scope.
        logits = jax.lax.optimization_barrier(logits)
        if candidates == 1:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        keys = jax.vmap(_key, in_axes=(None, 0, 0))(draw["seed"], draw["sequences"], positions)
        if candidates is None:
            return _drawn(keys, logits / draw["temperature"])
        kept, token_ids = most_probable(logits, draw, candidates=candidates)
        rank = _drawn(keys, kept)
        return jnp.take_along_axis(token_ids, rank[:, None], axis=-1)[:, 0]


def most_probable(
    logits: Float[Array, "B V"], draw: Draw, *, candidates: int
) -> tuple[Float[Array, "B C"], Int[Array, "B C"]]:
    """Logits after temperature, top-k and top-p, in that order, and their token ids.

    Sorted in descending order, with the lowest id first of equal ones; removed ones are -inf. The
    order of the three, and top-p as the smallest set of most probable tokens with total probability
    of at least p, are those of transformers' TemperatureLogitsWarper, TopKLogitsWarper and
    TopPLogitsWarper. Only ties differ: transformers keeps all tokens that are as probable as the
    k-th, and this function keeps exactly k.
    """
    values, token_ids = jax.lax.top_k(logits / draw["temperature"], candidates)
    values = jnp.where(jnp.arange(candidates) < draw["top_k"], values, -jnp.inf)
    mass = jax.nn.softmax(values, axis=-1)
    # The mass of the tokens before each: the most probable token is always kept.
    before = jnp.cumsum(mass, axis=-1) - mass
    return jnp.where(before < draw["top_p"], values, -jnp.inf), token_ids


def _key(seed: Integer[Array, ""], sequence: Int[Array, ""], position: Int[Array, ""]) -> Array:
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, sequence), position)


def _drawn(keys: Array, logits: Float[Array, "B C"]) -> Int[Array, " B"]:
    """An index for each row, sampled by the row's key with probabilities softmax(logits).

    Takes the maximum of logits plus Gumbel noise, as jax.random.categorical does.
    """
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
