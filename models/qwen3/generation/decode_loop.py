"""Generation on the device: each prompt's first new token, then loops of decode steps.

The state of a batch is a dict: `token_ids` s32[B], the newest token of each sequence; `positions`
s32[B], its slot in the cache; `eos` s32[E], the ids that end a sequence, padded with -1; `draw`,
see `sampling`. A sequence whose position is S, the cache's length, has ended: it writes nothing,
and its tokens are `ENDED`.

`prompt_step` makes the whole state from `eos` and `draw`. `decode_loop` returns it with the newest
token and the position of each sequence. The module `state` makes the first state, and the shapes of
its leaves; it does not import the model, so that executables that were built in advance are loaded
without it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.sampling import next_tokens
from models.qwen3.generation.state import ENDED, State
from models.qwen3.modules.cache import Cache
from models.qwen3.steps import Implementation, Params, decode_step, prefill_step

Outputs: TypeAlias = dict[str, Any]


def prompt_step(
    config: Qwen3Config, *, candidates: int | None = 1, implementation: Implementation = "xla"
) -> Callable[[Params, Cache, State, Array, Array], Outputs]:
    """The step that reads prompts into an empty cache, and samples the first new token of each.

    Returns:
      `fn(params, cache, state, token_ids, lengths)`: `state` has `eos` and `draw` only; token_ids
      and lengths are as in `prefill_step`, except that a length of 0 means no sequence. Result:
      `{"tokens": s32[B, 1], "state": the whole state, "cache": the cache}`.
    """
    step = prefill_step(config, implementation=implementation)

    def prefill(
        params: Params,
        cache: Cache,
        state: State,
        token_ids: Int[Array, "B T"],
        lengths: Int[Array, " B"],
    ) -> Outputs:
        out = step(params, cache, token_ids, lengths)
        drawn = next_tokens(out["logits"], state["draw"], lengths, candidates=candidates)
        capacity = cache[0]["k"].shape[2]
        # The state after decoding the prompt's last token; an absent sequence has ended.
        positions = jnp.where(lengths == 0, capacity, lengths - 1)
        state = {**state, "token_ids": jnp.zeros_like(lengths), "positions": positions}
        state, tokens = _advanced(state, drawn, capacity)
        return {"tokens": tokens[:, None], "state": state, "cache": out["cache"]}

    return prefill


def decode_loop(
    config: Qwen3Config,
    *,
    steps: int,
    candidates: int | None = 1,
    implementation: Implementation = "xla",
) -> Callable[[Params, Cache, State], Outputs]:
    """A loop of `steps` decode steps, each of which samples the token that the next one reads.

    The number of trips is static, so that XLA does not synchronise with the host between them.

    Returns:
      `fn(params, cache, state)`, with cache and state to be donated. Result:
      `{"tokens": s32[B, steps], "state": the state, "cache": the cache}`.
    """
    step = decode_step(config, implementation=implementation)

    def generate(params: Params, cache: Cache, state: State) -> Outputs:
        capacity = cache[0]["k"].shape[2]

        def decode(
            index: Array, carry: tuple[Cache, Array, Array, Array]
        ) -> tuple[Cache, Array, Array, Array]:
            cache, token_ids, positions, tokens = carry
            out = step(params, cache, token_ids, positions)
            drawn = next_tokens(out["logits"], state["draw"], positions + 1, candidates=candidates)
            before = {**state, "token_ids": token_ids, "positions": positions}
            after, new = _advanced(before, drawn, capacity)
            tokens = jax.lax.dynamic_update_slice_in_dim(tokens, new[:, None], index, axis=1)
            return out["cache"], after["token_ids"], after["positions"], tokens

        token_ids, positions = state["token_ids"], state["positions"]
        tokens = jnp.full((*token_ids.shape, steps), ENDED, jnp.int32)
        cache, token_ids, positions, tokens = jax.lax.fori_loop(
            0, steps, decode, (cache, token_ids, positions, tokens)
        )
        state_after = {**state, "token_ids": token_ids, "positions": positions}
        return {"tokens": tokens, "state": state_after, "cache": cache}

    return generate


def _advanced(
    state: State, drawn: Int[Array, " B"], capacity: int
) -> tuple[State, Int[Array, " B"]]:
    """The state with the sampled tokens as the newest, and the token or ENDED of each sequence."""
    ended = state["positions"] >= capacity
    ends = ended | jnp.isin(drawn, state["eos"])
    after = {
        **state,
        "token_ids": jnp.where(ended, state["token_ids"], drawn),
        "positions": jnp.where(ends, capacity, state["positions"] + 1),
    }
    return after, jnp.where(ended, ENDED, drawn)
