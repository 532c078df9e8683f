"""A small program for two devices: a weight in shards, gathered, and its gradient scattered."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from xlapipe import Workload

AXIS = "data"
ROWS, FEATURES = 8, 16
# XLA's own kernel for the sum works within one process only; jax 0.10 does not have it.
OPTIONS = (
    {"xla_gpu_experimental_use_collective_kernels": ""} if jax.__version_info__ >= (0, 11) else {}
)


def over_mesh(shard, x):  # type: ignore[no-untyped-def]
    weight = lax.all_gather(shard, AXIS, tiled=True)
    y = jnp.maximum(x @ weight.T, 0)
    gradient = lax.psum_scatter(y.T @ x, AXIS, scatter_dimension=0, tiled=True)
    return shard - 0.5 * gradient, y, lax.psum(y.sum(), AXIS)


def sharded(devices: int = 2) -> Workload:
    sharded_rows = PartitionSpec(AXIS)
    return Workload(
        name="small-sharded",
        fn=jax.shard_map(
            over_mesh,
            in_specs=(sharded_rows, sharded_rows),
            out_specs=(sharded_rows, sharded_rows, PartitionSpec()),
        ),
        args=(
            jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.float32),
            jax.ShapeDtypeStruct((ROWS, FEATURES), jnp.float32),
        ),
        donate_argnums=0,
        mesh={AXIS: devices},
        in_specs=sharded_rows,
        options=OPTIONS,
    )
