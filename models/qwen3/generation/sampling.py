"""The next token of each sequence, from its logits, on the device.

How much of the vocabulary a draw has to put in order is static, since ordering is what costs:
`candidates` is 1 for greedy (an argmax and nothing else), None to draw from the whole vocabulary
by temperature alone (nothing is ordered), or the number of likeliest tokens that top-k and top-p
choose from. Temperature, top-k, top-p and seed are arrays, so that one executable serves them all.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int, Integer

from models.qwen3.generation.sampling_settings import SamplingSettings

Draw: TypeAlias = Mapping[str, Any]


def draw_of(settings: SamplingSettings, *, batch: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays that `next_tokens` draws by, on the host; sequence i of the batch has index i.

    Returns:
      `{"seed": u32[], "sequences": s32[B], "temperature": f32[], "top_k": s32[], "top_p": f32[]}`;
      empty for greedy.
    """
    if settings.greedy:
        return {}
    unlimited = np.iinfo(np.int32).max
    return {
        "seed": np.asarray(settings.seed, np.uint32),
        "sequences": np.arange(batch, dtype=np.int32),
        "temperature": np.asarray(settings.temperature, np.float32),
        "top_k": np.asarray(settings.top_k or unlimited, np.int32),
        "top_p": np.asarray(settings.top_p, np.float32),
    }


def next_tokens(
    logits: Float[Array, "B V"],
    draw: Draw,
    positions: Int[Array, " B"],
    *,
    candidates: int | None,
) -> Int[Array, " B"]:
    """The token drawn for each sequence; of equal logits the lowest id comes first.

    A draw depends on the sequence's own logits, on the seed, and on the sequence's index and
    position: never on what else is in the batch.

    Args:
      logits: float32.
      draw: as `draw_of` makes it.
      positions: the place in its sequence of the token to be drawn.
      candidates: static; see above. Top-k must not exceed it.
    """
    with jax.named_scope("sample"):
        # For one sequence XLA would pull the head's gemm into the drawing, as a product of vectors
        # that has lost its name scope.
        logits = jax.lax.optimization_barrier(logits)
        if candidates == 1:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        keys = jax.vmap(_key, in_axes=(None, 0, 0))(draw["seed"], draw["sequences"], positions)
        if candidates is None:
            return _drawn(keys, logits / draw["temperature"])
        kept, token_ids = likeliest(logits, draw, candidates=candidates)
        rank = _drawn(keys, kept)
        return jnp.take_along_axis(token_ids, rank[:, None], axis=-1)[:, 0]


def likeliest(
    logits: Float[Array, "B V"], draw: Draw, *, candidates: int
) -> tuple[Float[Array, "B C"], Int[Array, "B C"]]:
    """The logits that are left by temperature, then top-k, then top-p, and their token ids.

    In falling order, of equal ones the lowest id first; what is ruled out is -inf. The order of
    the three, and top-p as the smallest set of likeliest tokens whose mass reaches p, are those
    of transformers' TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper. They differ
    for ties: of tokens as likely as the k-th it keeps all, and here there are k.
    """
    values, token_ids = jax.lax.top_k(logits / draw["temperature"], candidates)
    values = jnp.where(jnp.arange(candidates) < draw["top_k"], values, -jnp.inf)
    mass = jax.nn.softmax(values, axis=-1)
    # The mass of those before: the likeliest token is always kept.
    before = jnp.cumsum(mass, axis=-1) - mass
    return jnp.where(before < draw["top_p"], values, -jnp.inf), token_ids


def _key(seed: Integer[Array, ""], sequence: Int[Array, ""], position: Int[Array, ""]) -> Array:
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, sequence), position)


def _drawn(keys: Array, logits: Float[Array, "B C"]) -> Int[Array, " B"]:
    """One index for each row, by its own key, with the probabilities softmax(logits).

    The largest of logits plus Gumbel noise, as in jax.random.categorical.
    """
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
