"""Programs over two devices: collectives of several kinds, dtypes and sizes.

XLA chooses by size: its own kernel or NCCL for an all-reduce, and which collectives it combines.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

_MESH = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
_EXCHANGE = [(0, 1), (1, 0)]
_COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_gather": lambda x: lax.all_gather(x, "x", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True),
    "max": lambda x: lax.pmax(x, "x"),
    "ppermute": lambda x: lax.ppermute(x, "x", _EXCHANGE),
    "psum": lambda x: lax.psum(x, "x"),
    "psum_scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
}


def array(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def _split(name: str, fn: Any, args: Any, **fields: Any) -> Workload:
    """`fn` under shard_map, with every argument split over the two devices."""
    mapped = jax.shard_map(fn, mesh=_MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    specs = tuple(P("x") for _ in args)
    return Workload(name=name, fn=mapped, args=tuple(args), mesh=_MESH, in_specs=specs, **fields)


def collective(kind: str, dtype: str, rows: int) -> Workload:
    """One collective of [rows, 128] per device, between two elementwise operations."""
    operation = _COLLECTIVES[kind]
    return _split(
        f"{kind}_{dtype}_{rows}",
        lambda x: jnp.tanh(operation(x * 2)),
        [array(dtype, 2 * rows, 128)],
    )


def several_sums(count: int, rows: int) -> Workload:
    """All-reduces that XLA may combine."""
    return _split(
        f"several_sums_{count}_{rows}",
        lambda *xs: [lax.psum(x, "x") + index for index, x in enumerate(xs)],
        [array("float32", 2 * rows, 128) for _ in range(count)],
    )


def data_parallel(layers: int, width: int) -> Workload:
    """A training step of an MLP with replicated weights and a split batch."""

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jax.nn.relu(x @ weight)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def train(weights: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    weights = [array("bfloat16", width, width) for _ in range(layers)]
    return Workload(
        name=f"data_parallel_{layers}_{width}",
        fn=train,
        args=(weights, array("bfloat16", 512, width)),
        donate_argnums=(0,),
        mesh=_MESH,
        in_specs=(P(), P("x")),
        out_specs=P(),
    )


def tensor_parallel(layers: int, width: int) -> Workload:
    """MLPs whose first weight is split by columns and whose second is split by rows."""

    def forward(weights: Any, x: Any) -> Any:
        for up, down in weights:
            x = x + jax.nn.relu(x @ up) @ down
        return x

    pair = (array("bfloat16", width, 4 * width), array("bfloat16", 4 * width, width))
    return Workload(
        name=f"tensor_parallel_{layers}_{width}",
        fn=forward,
        args=([pair] * layers, array("bfloat16", 256, width)),
        mesh=_MESH,
        in_specs=([(P(None, "x"), P("x", None))] * layers, P()),
        out_specs=P(),
    )


def sharded_weights(layers: int, width: int) -> Workload:
    """A scan over layers whose weights are gathered layer by layer."""

    def forward(weights: Any, x: Any) -> Any:
        def layer(x: Any, weight: Any) -> Any:
            return jax.nn.relu(x @ lax.all_gather(weight, "x", tiled=True)), None

        return lax.scan(layer, x, weights)[0]

    mapped = jax.shard_map(
        forward, mesh=_MESH, in_specs=(P(None, "x"), P("x")), out_specs=P("x"), check_vma=False
    )
    return Workload(
        name=f"sharded_weights_{layers}_{width}",
        fn=mapped,
        args=(array("bfloat16", layers, width, width), array("bfloat16", 512, width)),
        mesh=_MESH,
        in_specs=(P(None, "x"), P("x")),
    )
