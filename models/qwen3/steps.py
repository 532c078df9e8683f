"""Prefill and decode as functions of plain pytrees, ready for `jax.jit` with the cache donated."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.decode import decode_with_kernels
from models.qwen3.kernels.prefill import prefill_with_kernels
from models.qwen3.kernels.tiling import decode_fits, hopper_fits, prompt_fits
from models.qwen3.modules.cache import Cache
from models.qwen3.modules.model import Qwen3, last_of

Params: TypeAlias = dict[str, Any]
Outputs: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Params, Cache, Array, Array], Outputs]
# XLA computes all of a step, or the kernels of `kernels/` what they are for: through Triton on any
# GPU; on Hopper, through Mosaic GPU where that is faster; or in Pallas's interpreters, anywhere.
Implementation: TypeAlias = Literal["xla", "triton", "hopper", "interpret", "interpret-hopper"]


def abstract_model(config: Qwen3Config) -> tuple[nnx.GraphDef[Qwen3], Params]:
    """The model's structure, and its parameters as nested dicts of `ShapeDtypeStruct`.

    Nothing is allocated. `params["layers"][0]["attention"]["qkv_proj"]["weight"]` is a leaf.
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
) -> Implementation:
    """The faster one: kernels in 16 bits on a GPU, for shapes that they take.

    Args:
      platform: of the device, as jax names it.
      compute_capability: of the GPU, e.g. `9.0`; None for kernels that run on any.
      length: new tokens of each sequence. One is a decode step, whose kernels are for a single
        sequence; XLA's own products are the better ones for several.
    """
    if platform not in ("gpu", "cuda") or config.itemsize != 2:
        return "xla"
    if length == 1:
        return "triton" if batch == 1 and decode_fits(cache_length) else "xla"
    if hopper_fits(config, length, compute_capability):
        return "hopper"
    return "triton" if prompt_fits(length) else "xla"


def xla_options(implementation: Implementation) -> dict[str, bool]:
    """What XLA is best told on the GPU, beyond its defaults.

    Between the kernels for Hopper, the products that are left were faster in cuBLAS than what
    autotuning made of them when it could choose Triton too.
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
            # Padding gets positions past the cache: all different, none of them written.
            positions = jnp.where(steps < lengths[:, None], steps, steps + capacity)
            x, cache = model(token_ids, positions, cache, attended_length=length)
            # Chosen before the head, so that logits of all positions never exist.
            last = last_of(x, lengths)
        else:
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
      sequence; positions s32[B], its place (the number of tokens already in the cache). Result:
      `{"logits": f32[B, V], "cache": the cache}`. A sequence whose position is S or more
      writes nothing: one that has ended can be kept in the batch that way.
    """
    graphdef, _ = abstract_model(config)

    def decode(
        params: Params, cache: Cache, token_ids: Int[Array, " B"], positions: Int[Array, " B"]
    ) -> Outputs:
        model = nnx.merge(graphdef, params)
        if implementation == "xla":
            x, cache = model(token_ids[:, None], positions[:, None], cache)
            return {"logits": model.logits(x[:, 0]), "cache": cache}
        interpret = implementation in ("interpret", "interpret-hopper")
        logits, cache = decode_with_kernels(model, cache, token_ids, positions, interpret=interpret)
        return {"logits": logits, "cache": cache}

    return decode
