"""Workloads of Qwen3 over many devices. Building a workload allocates no arrays."""

from dataclasses import replace
from math import gcd

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from models.qwen3.config import CONFIGS
from models.qwen3.sharded import expectations
from models.qwen3.sharded.train import (
    TARGETS,
    TOKENS,
    abstract_state,
    mesh_axes,
    state_specs,
    train_step,
)
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
    if size not in CONFIGS:
        raise ValueError(f"size={size!r}: expected one of {', '.join(CONFIGS)}")
    config = CONFIGS[size]
    if layers is not None:
        config = replace(config, num_hidden_layers=layers)
    usual = gcd(devices, _GPUS_PER_HOST)
    mesh = mesh_axes(devices, tensor or usual)
    # A suffix for each argument that is not default.
    name = "qwen3-train" + ("" if size == "0.6b" else f"-{size}")
    name += "" if layers is None else f"-layers{layers}"
    name += "" if batch == 8 else f"-batch{batch}"
    name += "" if seq == 2048 else f"-seq{seq}"
    name += "" if tensor in (None, usual) else f"-tensor{tensor}"
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    specs = state_specs(config)
    return Workload(
        name=name,
        fn=train_step(config),
        args=(abstract_state(config), tokens, tokens),
        donate_argnums=0,
        mesh=mesh,
        in_specs=(specs, TOKENS, TARGETS),
        out_specs=(specs, PartitionSpec()),
        expectations=expectations.train(config, mesh, batch=batch, seq=seq),
    )
