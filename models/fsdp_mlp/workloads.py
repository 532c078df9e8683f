"""The sharded MLP's workloads. Building one allocates nothing."""

import jax
import jax.numpy as jnp

from models.fsdp_mlp import expectations, reference, training
from models.fsdp_mlp.sizes import MLPSizes
from xlapipe.workload import Workload

# On 64 devices and more XLA would scatter two layers' gradients at once, later, and so beside
# fewer gemms, for which it would keep both.
OPTIONS: dict[str, int | str] = {
    "xla_gpu_all_gather_combine_threshold_bytes": 0,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 0,
}
if jax.__version_info__ >= (0, 11):
    # Over NVLink XLA would add up the loss with a kernel of its own, which works within one
    # process only; jax 0.10 has no such option.
    OPTIONS["xla_gpu_experimental_use_collective_kernels"] = ""


def fsdp_mlp_reference(batch: int = 1, devices: int = 2) -> Workload:
    """The backward pass of dump 000; `batch` counts the rows of one device."""
    sizes = MLPSizes(hidden=16, layers=3, batch=batch, devices=devices)
    rows = sizes.batch * sizes.devices
    activation = jax.ShapeDtypeStruct((rows, sizes.hidden), jnp.bfloat16)
    return Workload(
        name=f"fsdp-mlp-reference{_beyond_default(batch=(batch, 1))}",
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
    """A training step; `batch` counts the rows of one device."""
    sizes = MLPSizes(hidden=hidden, layers=layers, batch=batch, devices=devices)
    rows = jax.ShapeDtypeStruct((batch * devices, hidden), jnp.bfloat16)
    name = f"fsdp-mlp{_beyond_default(hidden=(hidden, 8192), layers=(layers, 4))}"
    name += _beyond_default(batch=(batch, 4096))
    return Workload(
        name=name,
        fn=training.training_step(sizes),
        args=(training.abstract_state(sizes), rows, rows),
        donate_argnums=0,
        options=OPTIONS,
        mesh={training.AXIS: devices},
        in_specs=training.IN_SPECS,
        out_specs=training.OUT_SPECS,
        expectations=expectations.training_step(sizes),
    )


def _beyond_default(**values: tuple[int, int]) -> str:
    """`-layers28` for each value that is not its default: a folder of its own for the dump."""
    return "".join(f"-{key}{value}" for key, (value, default) in values.items() if value != default)
