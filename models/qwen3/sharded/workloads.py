"""The workloads over many devices. Building one allocates nothing."""

from dataclasses import replace
from math import gcd

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from models.qwen3.config import CONFIGS, Qwen3Config
from models.qwen3.modules.cache import init_cache
from models.qwen3.sharded import expectations
from models.qwen3.sharded.layout import DATA
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
from xlapipe.targets.topology import GPUS_PER_HOST
from xlapipe.workload import Workload


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
      size: a name of `config.CONFIGS`.
      layers: None for all of the config's.
      batch: sequences of the whole step.
      seq: tokens of each.
      devices: given by the topology where the command line names one.
      tensor: devices that share each layer, at most as many as there are key/value heads; the
        others shard weights and sequences. None for those of one host, up to 8.

    Raises:
      ValueError: an unknown size, or a mesh axis that does not divide a dimension: which leaf,
        which axis.
    """
    config = _config_of(size, layers)
    tensor, cut = _tensor(devices, tensor)
    mesh = mesh_axes(devices, tensor)
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    specs = state_specs(config)
    return Workload(
        name=_named("qwen3-train", size, layers, batch=(batch, 8), seq=(seq, 2048)) + cut,
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
      tensor: devices that share each layer and each sequence's heads; the others have sequences
        of their own, and all weights again. The rest as in `qwen3_train`.

    Raises:
      ValueError: as `qwen3_train`.
    """
    config = _config_of(size, layers)
    tensor, cut = _tensor(devices, tensor)
    mesh = mesh_axes(devices, tensor, others=DATA)
    per_sequence = jax.ShapeDtypeStruct((batch,), jnp.int32)
    cache: list[dict[str, jax.ShapeDtypeStruct]] = jax.eval_shape(
        lambda: init_cache(config, batch=batch, cache_length=cache_length)
    )
    return Workload(
        name=_named("qwen3-serve", size, layers, batch=(batch, 8), cache=(cache_length, 2048))
        + cut,
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


def _tensor(devices: int, given: int | None) -> tuple[int, str]:
    """Devices that share a layer, and what the name says of it."""
    of_a_host = gcd(devices, GPUS_PER_HOST)
    tensor = of_a_host if given is None else given
    return tensor, "" if tensor == of_a_host else f"-tensor{tensor}"


def _named(name: str, size: str, layers: int | None, **values: tuple[int, int]) -> str:
    """`-batch64` for each value that is not its default: a folder of its own for the dump."""
    name += "" if size == "0.6b" else f"-{size}"
    name += "" if layers is None else f"-layers{layers}"
    return name + "".join(f"-{key}{n}" for key, (n, default) in values.items() if n != default)
