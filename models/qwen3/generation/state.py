"""The state of a batch while tokens are generated; `decode_loop` describes its leaves.

Imports neither flax nor the model: executables that were built in advance are loaded without them.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from models.qwen3.generation.sampling import draw_of
from models.qwen3.generation.sampling_settings import MAX_EOS, SamplingSettings
from xlapipe.errors import XlapipeError

State: TypeAlias = dict[str, Any]

# The token of a sequence that has ended.
ENDED = -1


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
