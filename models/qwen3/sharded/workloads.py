"""Workloads of Qwen3 over many devices. Building a workload allocates no arrays."""

from dataclasses import replace
from math import gcd

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from models.qwen3.config import CONFIGS, Qwen3Config
from models.qwen3.modules.cache import init_cache
from models.qwen3.sharded import expectations
from models.qwen3.sharded.serve import (
    CACHE,
    SEQUENCES,
    abstract_weights,
    serve_specs,
    serve_step,
)
from models.qwen3.sharded.train import (
    TARGETS,
    TOKENS,
    abstract_state,
    mesh_axes,
    state_specs,
    train_step,
)
from models.qwen3.sharded.weight_layout import DATA
from xlapipe import Workload

_GPUS_PER_HOST = 8


def qwen3_train(
    size: str = "0.6b",
    layers: int | None = None,
    batch: int = 8,
    seq: int = 2048,
    devices: int = 8,
    tensor: int | None = None,
) -> Workload:
    """A training step over `devices` GPUs; see `train.train_step`.

    Args:
      size: a name in `config.CONFIGS`.
      layers: number of layers; None for that of the config.
      batch: sequences of the whole step.
      seq: tokens per sequence.
      devices: number of devices; `--topology` replaces it.
      tensor: number of devices that share each layer, at most that of key/value heads; the mesh's
        other axis shards weights and sequences. None for the devices of one host, up to 8.

    Raises:
      ValueError: an unknown size, or a mesh axis that does not divide a dimension; names the leaf
        and the axis.
    """
    config = _config_of(size, layers)
    tensor, tensor_suffix = _tensor(devices, tensor)
    mesh = mesh_axes(devices, tensor)
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    specs = state_specs(config)
    return Workload(
        name=_name("qwen3-train", size, layers, batch=(batch, 8), seq=(seq, 2048)) + tensor_suffix,
        fn=train_step(config),
        args=(abstract_state(config), tokens, tokens),
        donate_argnums=0,
        mesh=mesh,
        in_specs=(specs, TOKENS, TARGETS),
        out_specs=(specs, PartitionSpec()),
        expectations=expectations.train(config, mesh, batch=batch, seq=seq),
    )


def qwen3_serve(
    size: str = "0.6b",
    layers: int | None = None,
    batch: int = 8,
    cache_length: int = 2048,
    devices: int = 8,
    tensor: int | None = None,
) -> Workload:
    """One token for each of `batch` sequences over `devices` GPUs; see `serve.serve_step`.

    Args:
      cache_length: cache slots per sequence.
      tensor: number of devices that share each layer and each sequence's heads; along the mesh's
        other axis, sequences are split and weights are replicated. The other arguments are those
        of `qwen3_train`.

    Raises:
      ValueError: as in `qwen3_train`.
    """
    config = _config_of(size, layers)
    tensor, tensor_suffix = _tensor(devices, tensor)
    mesh = mesh_axes(devices, tensor, others=DATA)
    per_sequence = jax.ShapeDtypeStruct((batch,), jnp.int32)
    cache: list[dict[str, jax.ShapeDtypeStruct]] = jax.eval_shape(
        lambda: init_cache(config, batch=batch, cache_length=cache_length)
    )
    return Workload(
        name=_name("qwen3-serve", size, layers, batch=(batch, 8), cache=(cache_length, 2048))
        + tensor_suffix,
        fn=serve_step(config),
        args=(abstract_weights(config), cache, per_sequence, per_sequence),
        donate_argnums=1,
        mesh=mesh,
        in_specs=(serve_specs(config), CACHE, SEQUENCES, SEQUENCES),
        out_specs={"logits": CACHE, "cache": CACHE},
        expectations=expectations.serve(config, mesh, batch=batch, cache_length=cache_length),
    )


def _config_of(size: str, layers: int | None) -> Qwen3Config:
    if size not in CONFIGS:
        raise ValueError(f"size={size!r}: expected one of {', '.join(CONFIGS)}")
    config = CONFIGS[size]
    return config if layers is None else replace(config, num_hidden_layers=layers)


def _tensor(devices: int, tensor: int | None) -> tuple[int, str]:
    """The number of devices that share a layer, and its suffix in the workload's name."""
    default = gcd(devices, _GPUS_PER_HOST)
    if tensor is None or tensor == default:
        return default, ""
    return tensor, f"-tensor{tensor}"


def _name(name: str, size: str, layers: int | None, **values: tuple[int, int]) -> str:
    """The workload's name with a suffix, e.g. `-batch64`, for each argument that is not default."""
    name += "" if size == "0.6b" else f"-{size}"
    name += "" if layers is None else f"-layers{layers}"
    return name + "".join(f"-{key}{n}" for key, (n, default) in values.items() if n != default)
