"""Generation on the device: each prompt's first new token, then loops of decode steps.

The state of a batch is a dict: `token_ids` s32[B], the newest token of each sequence; `positions`
s32[B], its slot in the cache; `eos` s32[E], the ids that end a sequence, padded with -1; `draw`,
see `sampling`. A sequence whose position is S, the cache's length, has ended: it writes nothing,
and its tokens are `ENDED`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.sampling import draw_of, next_tokens
from models.qwen3.generation.sampling_settings import MAX_EOS, SamplingSettings
from models.qwen3.modules.cache import Cache
from models.qwen3.steps import Implementation, Params, decode_step, prefill_step
from xlapipe.errors import XlapipeError

State: TypeAlias = dict[str, Any]
Outputs: TypeAlias = dict[str, Any]

ENDED = -1


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


def first_state(settings: SamplingSettings, eos_token_ids: Sequence[int], *, batch: int) -> State:
    """The state that is an argument of `prompt_step`, on the host.

    Raises:
      XlapipeError: more than `MAX_EOS` ids.
    """
    if len(eos_token_ids) > MAX_EOS:
        raise XlapipeError(
            f"expected at most {MAX_EOS} ids that end a sequence, found {len(eos_token_ids)}"
        )
    padded = [*eos_token_ids, *[ENDED] * (MAX_EOS - len(eos_token_ids))]
    return {"eos": np.asarray(padded, np.int32), "draw": draw_of(settings, batch=batch)}


def abstract_state(*, batch: int, candidates: int | None, whole: bool) -> State:
    """The state's shapes: the whole state, or that of `prompt_step`'s argument."""
    state = first_state(SamplingSettings(greedy=candidates == 1), (), batch=batch)
    if whole:
        state |= {name: np.zeros(batch, np.int32) for name in ("token_ids", "positions")}
    abstract: State = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    return abstract
