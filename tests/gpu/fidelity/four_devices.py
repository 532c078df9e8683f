"""Programs over four devices: collectives over all of them, over pairs, and over a 2x2 mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

_ROW = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
_SQUARE = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
_RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
_COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_gather": lambda x: lax.all_gather(x, "x", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True),
    "max": lambda x: lax.pmax(x, "x"),
    "ppermute": lambda x: lax.ppermute(x, "x", _RING),
    "psum": lambda x: lax.psum(x, "x"),
    "psum_scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
}


def array(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def of_four(kind: str, dtype: str, rows: int) -> Workload:
    """One collective of [rows, 128] per device, between two elementwise operations."""
    operation = _COLLECTIVES[kind]
    mapped = jax.shard_map(
        lambda x: jnp.tanh(operation(x * 2)),
        mesh=_ROW,
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )
    return Workload(
        name=f"of_four_{kind}_{dtype}_{rows}",
        fn=mapped,
        args=(array(dtype, 4 * rows, 128),),
        mesh=_ROW,
        in_specs=(P("x"),),
    )


def of_pairs(dtype: str, rows: int) -> Workload:
    """A sum over each axis of a 2x2 mesh, in two groups of two devices."""
    mapped = jax.shard_map(
        lambda x: lax.psum(jnp.tanh(lax.psum(x * 2, "y")), "x"),
        mesh=_SQUARE,
        in_specs=P("x", "y"),
        out_specs=P("x", "y"),
        check_vma=False,
    )
    return Workload(
        name=f"of_pairs_{dtype}_{rows}",
        fn=mapped,
        args=(array(dtype, 2 * rows, 256),),
        mesh=_SQUARE,
        in_specs=(P("x", "y"),),
    )


def square_train(layers: int, width: int, *, gathered: bool = False) -> Workload:
    """A training step over a 2x2 mesh: the batch is split over x, and weights over y.

    Args:
      gathered: whether weights are split over x as well, and gathered for each use.
    """

    def loss(weights: Any, x: Any) -> Any:
        for up, down in weights:
            x = x + jax.nn.relu(x @ up) @ down
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def train(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    rows = "x" if gathered else None
    specs = [(P(rows, "y"), P("y", rows))] * layers
    pair = (array("bfloat16", width, 4 * width), array("bfloat16", 4 * width, width))
    return Workload(
        name=f"square_train_{layers}_{width}{'_gathered' if gathered else ''}",
        fn=train,
        args=([pair] * layers, array("bfloat16", 512, width)),
        donate_argnums=(0,),
        mesh=_SQUARE,
        in_specs=(specs, P("x")),
        out_specs=(specs, P()),
    )


def square_scan(layers: int, width: int) -> Workload:
    """The gradient of a scan over layers whose weights are split over all four devices."""

    def loss(weights: Any, x: Any) -> Any:
        def layer(x: Any, weight: Any) -> Any:
            return jax.nn.relu(x @ weight), None

        return jnp.mean(lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2)

    specs = (P(None, "x", "y"), P("x"))
    return Workload(
        name=f"square_scan_{layers}_{width}",
        fn=jax.grad(loss),
        args=(array("bfloat16", layers, width, width), array("bfloat16", 512, width)),
        mesh=_SQUARE,
        in_specs=specs,
        out_specs=specs[0],
    )
