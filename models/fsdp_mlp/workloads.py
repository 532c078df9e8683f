"""Workloads of the sharded MLP. Building a workload allocates no arrays."""

import jax
import jax.numpy as jnp

from models.fsdp_mlp import expectations, reference, training
from models.fsdp_mlp.sizes import MLPSizes
from xlapipe import Workload

# Turns the collective combiners off. On 64 devices and more, XLA otherwise combines the
# reduce-scatters of two layers: it keeps both gradients longer and overlaps fewer gemms.
OPTIONS: dict[str, int | str] = {
    "xla_gpu_all_gather_combine_threshold_bytes": 0,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 0,
}
if jax.__version_info__ >= (0, 11):
    # Over NVLink, XLA otherwise all-reduces the loss with its own kernel, which supports a single
    # process only. jax 0.10 does not have this option.
    OPTIONS["xla_gpu_experimental_use_collective_kernels"] = ""


def fsdp_mlp_reference(batch: int = 1, devices: int = 2) -> Workload:
    """The backward pass of reference dump 000.

    Args:
      batch: rows per device.
      devices: number of devices.
    """
    sizes = MLPSizes(hidden=16, layers=3, batch=batch, devices=devices)
    rows = sizes.batch * sizes.devices
    activation = jax.ShapeDtypeStruct((rows, sizes.hidden), jnp.bfloat16)
    return Workload(
        name=f"fsdp-mlp-reference{_suffix(batch=(batch, 1))}",
        fn=reference.backward_over_mesh(),
        args=(
            (jax.ShapeDtypeStruct((sizes.kernel,), jnp.bfloat16),) * sizes.layers,
            activation,
            activation,
            activation,
            jax.ShapeDtypeStruct(activation.shape, jnp.bool),
            jax.ShapeDtypeStruct((), jnp.bfloat16),
        ),
        mesh={training.AXIS: sizes.devices},
        in_specs=reference.IN_SPECS,
        out_specs=reference.OUT_SPECS,
        expectations=expectations.reference(sizes),
    )


def fsdp_mlp(layers: int = 4, batch: int = 4096, devices: int = 2, hidden: int = 8192) -> Workload:
    """A training step.

    Args:
      layers: number of layers.
      batch: rows per device.
      devices: number of devices.
      hidden: features of every layer.
    """
    sizes = MLPSizes(hidden=hidden, layers=layers, batch=batch, devices=devices)
    rows = jax.ShapeDtypeStruct((batch * devices, hidden), jnp.bfloat16)
    return Workload(
        name=f"fsdp-mlp{_suffix(hidden=(hidden, 8192), layers=(layers, 4), batch=(batch, 4096))}",
        fn=training.training_step(sizes),
        args=(training.abstract_state(sizes), rows, rows),
        donate_argnums=0,
        options=OPTIONS,
        mesh={training.AXIS: devices},
        in_specs=training.IN_SPECS,
        out_specs=training.OUT_SPECS,
        expectations=expectations.training_step(sizes),
    )


def _suffix(**values: tuple[int, int]) -> str:
    """`-NAMEVALUE` for each (value, default) that differ, e.g. `-layers28`.

    Gives each variant of a workload a different name, and so a different folder for its dump.
    """
    return "".join(f"-{key}{value}" for key, (value, default) in values.items() if value != default)
