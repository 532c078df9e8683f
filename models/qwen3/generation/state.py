"""The state of a batch while tokens are generated; `decode_loop` describes its leaves."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from models.qwen3.generation.sampling_settings import MAX_EOS, SamplingSettings
from xlapipe import XlapipeError

State: TypeAlias = dict[str, Any]
Draw: TypeAlias = dict[str, npt.NDArray[Any]]

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


def empty_state(*, batch: int, candidates: int | None, whole: bool) -> State:
    """A state with the arrays of `prompt_step`'s argument, or with those of the whole state."""
    state = first_state(SamplingSettings(greedy=candidates == 1), (), batch=batch)
    if whole:
        state |= {name: np.zeros(batch, np.int32) for name in ("token_ids", "positions")}
    return state


def draw_of(settings: SamplingSettings, *, batch: int) -> Draw:
    """The settings as arrays for `sampling.next_tokens`, on the host.

    Sequence i of the batch has index i.

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
