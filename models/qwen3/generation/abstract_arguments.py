"""Shapes and dtypes of the steps' arguments, as pytrees to compile for."""

from typing import Any

import jax

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.state import State, empty_state
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.params import abstract_params


def abstract_arguments(
    config: Qwen3Config, sizes: GenerationSizes
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of the arguments of `prompt_step` and of `decode_loop`."""
    params = abstract_params(config)
    cache_shape = config.cache_shape(batch=sizes.batch, cache_length=sizes.cache_length)
    cache = [
        {name: jax.ShapeDtypeStruct(cache_shape, config.dtype) for name in ("k", "v")}
        for _ in range(config.num_hidden_layers)
    ]
    lengths = jax.ShapeDtypeStruct((sizes.batch,), "int32")
    prompt_state, decode_state = (
        abstract_state(batch=sizes.batch, candidates=sizes.candidates, whole=whole)
        for whole in (False, True)
    )
    token_ids = jax.ShapeDtypeStruct((sizes.batch, sizes.bucket), "int32")
    return (params, cache, prompt_state, token_ids, lengths), (params, cache, decode_state)


def abstract_state(*, batch: int, candidates: int | None, whole: bool) -> State:
    """The state's shapes: the whole state, or that of `prompt_step`'s argument."""
    state = empty_state(batch=batch, candidates=candidates, whole=whole)
    abstract: State = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    return abstract
