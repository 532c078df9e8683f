"""Prefill and decode as functions of plain pytrees, for `jax.jit` with the cache donated."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.all_layers.sizes import persistent_fits
from models.qwen3.kernels.product_forms import single_fits
from models.qwen3.kernels.tiling import batch_fits, decode_fits, hopper_fits, prompt_fits
from models.qwen3.modules.cache import Cache
from models.qwen3.modules.model import Qwen3, last_of

Params: TypeAlias = dict[str, Any]
Outputs: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Params, Cache, Array, Array], Outputs]
# What computes a step: `xla` alone; the kernels in `kernels/` through `triton`, on any GPU; on
# `hopper`, kernels through Mosaic GPU where they are faster; `persistent`, one kernel for all the
# layers of a decode step; or kernels in Pallas's interpreters.
Implementation: TypeAlias = Literal[
    "xla", "triton", "hopper", "persistent", "interpret", "interpret-hopper"
]


def abstract_model(config: Qwen3Config) -> tuple[nnx.GraphDef[Qwen3], Params]:
    """The model's structure, and its parameters as nested dicts of `ShapeDtypeStruct`.

    Allocates no arrays. `params["layers"][0]["attention"]["qkv_proj"]["weight"]` is a leaf.
    """
    model = nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(model)
    return graphdef, nnx.to_pure_dict(state)


def implementation_for(
    config: Qwen3Config,
    *,
    platform: str,
    batch: int,
    length: int,
    cache_length: int,
    compute_capability: str | None = None,
    multiprocessors: int | None = None,
) -> Implementation:
    """The fastest implementation: kernels on a GPU, for the dtypes and shapes that they support.

    Args:
      platform: jax's name of the device's platform.
      length: new tokens of each sequence. 1 is a decode step, which has different kernels for one
        sequence and for several.
      compute_capability: of the GPU, e.g. `9.0`; None for kernels that run on any GPU.
      multiprocessors: of the GPU; None for decode steps without the persistent kernel.
    """
    if platform not in ("gpu", "cuda") or config.itemsize != 2:
        return "xla"
    if length == 1:
        if batch == 1 and persistent_fits(
            config,
            cache_length,
            compute_capability=compute_capability,
            multiprocessors=multiprocessors,
        ):
            return "persistent"
        fits = single_fits(config) if batch == 1 else batch_fits(config, batch)
        return "triton" if fits and decode_fits(cache_length) else "xla"
    if hopper_fits(config, length, compute_capability):
        return "hopper"
    return "triton" if prompt_fits(length) else "xla"


def xla_options(implementation: Implementation) -> dict[str, bool]:
    """XLA options for an implementation on a GPU, in addition to XLA's defaults.

    With the kernels for Hopper, the remaining gemms measured faster in cuBLAS than with the
    autotuner's choice among cuBLAS and Triton.
    """
    return {"xla_gpu_enable_triton_gemm": False} if implementation == "hopper" else {}


def prefill_step(config: Qwen3Config, *, implementation: Implementation = "xla") -> Step:
    """The step that reads prompts into an empty cache.

    Returns:
      `fn(params, cache, token_ids, lengths)`: token_ids s32[B, T], prompts padded on the right;
      lengths s32[B], each in 1..T. T must not exceed the cache's S. Result:
      `{"logits": f32[B, V] at each prompt's last token, "cache": the cache}`.
    """
    graphdef, _ = abstract_model(config)

    def prefill(
        params: Params, cache: Cache, token_ids: Int[Array, "B T"], lengths: Int[Array, " B"]
    ) -> Outputs:
        model = nnx.merge(graphdef, params)
        length, capacity = token_ids.shape[1], cache[0]["k"].shape[2]
        if length > capacity:
            raise ValueError(f"a prompt bucket of {length} tokens exceeds the cache ({capacity})")
        if implementation == "xla":
            steps = jnp.arange(length, dtype=lengths.dtype)[None, :]
            # Padding gets distinct positions past the cache, so that it is not written.
            positions = jnp.where(steps < lengths[:, None], steps, steps + capacity)
            x, cache = model(token_ids, positions, cache, attended_length=length)
            # Before the head, so that logits of all positions are never computed.
            last = last_of(x, lengths)
        else:
            # Imports Pallas: loading executables that were built in advance does without it.
            from models.qwen3.kernels.prefill import prefill_with_kernels

            last, cache = prefill_with_kernels(
                *(model, cache, token_ids, lengths),
                hopper=implementation in ("hopper", "interpret-hopper"),
                interpret=implementation in ("interpret", "interpret-hopper"),
            )
        return {"logits": model.logits(last), "cache": cache}

    return prefill


def decode_step(config: Qwen3Config, *, implementation: Implementation = "xla") -> Step:
    """The step that adds one token to each sequence.

    Returns:
      `fn(params, cache, token_ids, positions)`: token_ids s32[B], the newest token of each
      sequence; positions s32[B], its position (the number of tokens already in the cache). Result:
      `{"logits": f32[B, V], "cache": the cache}`. A sequence whose position is S or more writes
      nothing, so that a sequence that has ended can stay in the batch.
    """
    graphdef, _ = abstract_model(config)

    def decode(
        params: Params, cache: Cache, token_ids: Int[Array, " B"], positions: Int[Array, " B"]
    ) -> Outputs:
        model = nnx.merge(graphdef, params)
        if implementation == "xla":
            x, cache = model(token_ids[:, None], positions[:, None], cache)
            return {"logits": model.logits(x[:, 0]), "cache": cache}
        if implementation == "persistent":
            from models.qwen3.kernels.all_layers.decode import decode_persistently

            logits, cache = decode_persistently(config, model, cache, token_ids, positions)
        else:
            from models.qwen3.kernels.decode import decode_with_kernels

            interpret = implementation in ("interpret", "interpret-hopper")
            logits, cache = decode_with_kernels(
                model, cache, token_ids, positions, interpret=interpret
            )
        return {"logits": logits, "cache": cache}

    return decode
