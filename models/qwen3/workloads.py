"""Workloads of Qwen3 on one device. Building a workload allocates no arrays."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from models.qwen3 import expectations
from models.qwen3.argument_bytes import (
    FLOAT32,
    ReferenceSizes,
    cache_leaf_bytes,
    layer_weight_bytes,
)
from models.qwen3.checkpoint.config_files import read_config
from models.qwen3.config import QWEN3_0_6B, Qwen3Config
from models.qwen3.generation.abstract_arguments import abstract_state
from models.qwen3.generation.decode_loop import decode_loop, prompt_step
from models.qwen3.kernels.product_forms import measured
from models.qwen3.kernels.tiling import chunk_of
from models.qwen3.modules.cache import init_cache
from models.qwen3.reference import reference_args, reference_step
from models.qwen3.steps import (
    Implementation,
    abstract_model,
    decode_step,
    implementation_for,
    prefill_step,
)
from xlapipe import Workload


def qwen3_step() -> Workload:
    """The step of reference dump 003, which returns both halves of the cache as copies."""
    sizes = ReferenceSizes()
    return Workload(
        name="qwen3-step",
        fn=reference_step(sizes),
        args=reference_args(sizes, with_slots=False),
        expectations=expectations.reference_step(sizes),
    )


def qwen3_step_donated() -> Workload:
    """The same step with the cache donated, and new keys and values written in place."""
    sizes = ReferenceSizes()
    return Workload(
        name="qwen3-step-donated",
        fn=reference_step(sizes),
        args=reference_args(sizes, with_slots=True),
        donate_argnums=16,
        expectations=expectations.reference_step_donated(sizes),
    )


def qwen3_prefill(
    layers: int = 2,
    batch: int = 1,
    length: int = 128,
    cache_length: int = 2048,
    config: Qwen3Config = QWEN3_0_6B,
) -> Workload:
    """Prompts of up to `length` tokens each, into an empty cache."""
    config = replace(config, num_hidden_layers=layers)
    name = f"qwen3-prefill{_suffix(layers=(layers, 2), batch=(batch, 1))}"
    name += _suffix(length=(length, 128), cache=(cache_length, 2048))
    return Workload(
        name=name,
        fn=prefill_step(config),
        args=(
            abstract_model(config)[1],
            _abstract_cache(config, batch, cache_length),
            jax.ShapeDtypeStruct((batch, length), jnp.int32),
            jax.ShapeDtypeStruct((batch,), jnp.int32),
        ),
        donate_argnums=1,
        expectations=expectations.prefill(
            config, batch=batch, length=length, cache_length=cache_length
        ),
    )


def qwen3_decode(
    layers: int = 2,
    batch: int = 1,
    cache_length: int = 2048,
    config: Qwen3Config = QWEN3_0_6B,
) -> Workload:
    """One token for each sequence, with attention over the whole cache."""
    config = replace(config, num_hidden_layers=layers)
    name = f"qwen3-decode{_suffix(layers=(layers, 2), batch=(batch, 1))}"
    name += _suffix(cache=(cache_length, 2048))
    per_sequence = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return Workload(
        name=name,
        fn=decode_step(config),
        args=(
            abstract_model(config)[1],
            _abstract_cache(config, batch, cache_length),
            per_sequence,
            per_sequence,
        ),
        donate_argnums=1,
        expectations=expectations.decode(config, batch=batch, cache_length=cache_length),
    )


def _abstract_cache(
    config: Qwen3Config, batch: int, cache_length: int
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    cache: list[dict[str, jax.ShapeDtypeStruct]] = jax.eval_shape(
        lambda: init_cache(config, batch=batch, cache_length=cache_length)
    )
    return cache


def _suffix(**values: tuple[int, int]) -> str:
    """`-NAMEVALUE` for each (value, default) that differ, e.g. `-layers28`.

    Gives each variant of a workload a different name, and so a different folder for its dump.
    """
    return "".join(f"-{key}{value}" for key, (value, default) in values.items() if value != default)


def qwen3_generate(
    layers: int | None = 2,
    batch: int = 1,
    cache_length: int = 2048,
    steps: int = 16,
    candidates: int | None = 1,
    config: Qwen3Config | Mapping[str, Any] | str = QWEN3_0_6B,
    dtype: str | None = None,
    implementation: Implementation | None = None,
) -> Workload:
    """A loop that decodes `steps` tokens for each sequence, and samples them on the device.

    Args:
      layers: number of layers; None for that of the config.
      candidates: as in `sampling.next_tokens`; 1 is greedy.
      config: a config, its values by name, or the folder of a checkpoint with config.json.
      dtype: replaces that of the config, if any.
      implementation: by default that of `steps.implementation_for` for a GPU.
    """
    config = _config_of(config, layers, dtype)
    implementation_suffix = f"-{implementation}" if implementation else ""
    implementation = implementation or implementation_for(
        config, platform="gpu", batch=batch, length=1, cache_length=cache_length
    )
    name = f"qwen3-generate{_suffix(layers=(config.num_hidden_layers, 2), batch=(batch, 1))}"
    name += _suffix(cache=(cache_length, 2048), steps=(steps, 16))
    return Workload(
        name=name + _sampling_suffix(candidates) + implementation_suffix,
        fn=decode_loop(config, steps=steps, candidates=candidates, implementation=implementation),
        args=(
            abstract_model(config)[1],
            _abstract_cache(config, batch, cache_length),
            abstract_state(batch=batch, candidates=candidates, whole=True),
        ),
        donate_argnums=(1, 2),
        expectations=expectations.generate(
            config,
            batch=batch,
            cache_length=cache_length,
            steps=steps,
            candidates=candidates,
            kernels=implementation == "triton",
            persistent=implementation == "persistent",
        ),
        kernel_bytes=_kernel_bytes(config, implementation, batch, cache_length),
    )


def _kernel_bytes(
    config: Qwen3Config, implementation: Implementation, batch: int, cache_length: int
) -> dict[str, int]:
    """The least that kernels read and write for a token: with an empty cache.

    The persistent kernel reads one row of the embedding, which XLA's module has as a whole operand.
    Attention of one sequence reads a chunk of each key/value head, and writes a slot.
    """
    if implementation == "persistent":
        return {"decode_layers": layer_weight_bytes(config) + config.hidden_size * config.itemsize}
    if implementation != "triton" or batch > 1 or not measured(config):
        return {}
    slots = cache_leaf_bytes(config, batch=2, cache_length=chunk_of(cache_length) + 1)
    return {"decode_attention": slots + (config.qkv_size + config.q_size) * FLOAT32}


def qwen3_generate_persistent(
    layers: int | None = 2, cache_length: int = 2048, steps: int = 16
) -> Workload:
    """Greedy decoding of one sequence with the persistent kernel."""
    return qwen3_generate(layers, 1, cache_length, steps, implementation="persistent")


def qwen3_prompts(
    layers: int | None = 2,
    batch: int = 1,
    length: int = 128,
    cache_length: int = 2048,
    candidates: int | None = 1,
    config: Qwen3Config | Mapping[str, Any] | str = QWEN3_0_6B,
    dtype: str | None = None,
    implementation: Implementation | None = None,
) -> Workload:
    """Prompts into an empty cache, and the first new token of each.

    Args:
      length: tokens that prompts are padded to. The others are those of `qwen3_generate`.
    """
    config = _config_of(config, layers, dtype)
    implementation_suffix = f"-{implementation}" if implementation else ""
    implementation = implementation or implementation_for(
        config, platform="gpu", batch=batch, length=length, cache_length=cache_length
    )
    name = f"qwen3-prompts{_suffix(layers=(config.num_hidden_layers, 2), batch=(batch, 1))}"
    name += _suffix(length=(length, 128), cache=(cache_length, 2048))
    return Workload(
        name=name + _sampling_suffix(candidates) + implementation_suffix,
        fn=prompt_step(config, candidates=candidates, implementation=implementation),
        args=(
            abstract_model(config)[1],
            _abstract_cache(config, batch, cache_length),
            abstract_state(batch=batch, candidates=candidates, whole=False),
            jax.ShapeDtypeStruct((batch, length), jnp.int32),
            jax.ShapeDtypeStruct((batch,), jnp.int32),
        ),
        donate_argnums=(1, 2),
        expectations=expectations.prompts(
            config,
            batch=batch,
            length=length,
            cache_length=cache_length,
            candidates=candidates,
            kernels=implementation == "triton",
            hopper=implementation == "hopper",
        ),
    )


def qwen3_prompts_hopper(
    layers: int | None = 2, batch: int = 1, length: int = 128, cache_length: int = 2048
) -> Workload:
    """Prompts with the kernels for Hopper, as `models.qwen3.generate` runs them on Hopper."""
    return qwen3_prompts(layers, batch, length, cache_length, implementation="hopper")


def _config_of(
    config: Qwen3Config | Mapping[str, Any] | str, layers: int | None, dtype: str | None
) -> Qwen3Config:
    if isinstance(config, str):
        config = read_config(Path(config), dtype=dtype)
    elif not isinstance(config, Qwen3Config):
        config = Qwen3Config(**config)
    if dtype is not None:
        config = replace(config, dtype=dtype)
    return config if layers is None else replace(config, num_hidden_layers=layers)


def _sampling_suffix(candidates: int | None) -> str:
    return {1: "", None: "-sampled"}.get(candidates, f"-sampled{candidates}")
