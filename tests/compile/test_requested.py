"""Collectives of a traced program, also in nested jaxprs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from xlapipe.compile.lowering.jaxprs import requested_collectives
from xlapipe.plans.program import RequestedCollective

pytestmark = pytest.mark.jax

MESH = AbstractMesh((4,), ("d",), axis_types=(AxisType.Auto,))
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def requested(step: Callable[..., Any]) -> tuple[RequestedCollective, ...]:
    """The collectives of a step over shards [2,16] of an array on four devices."""
    manual = jax.shard_map(step, mesh=MESH, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return requested_collectives(jax.jit(manual).trace(X).jaxpr)


def kinds(step: Callable[..., Any]) -> list[tuple[str, int | None]]:
    return [(collective.kind, collective.executions) for collective in requested(step)]


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (lambda x: lax.all_gather(x, "d"), "all-gather"),
        (lambda x: lax.psum(x, "d"), "all-reduce"),
        (lambda x: lax.pmean(x, "d"), "all-reduce"),
        (lambda x: lax.pmax(x, "d"), "all-reduce"),
        (lambda x: lax.pmin(x, "d"), "all-reduce"),
        (lambda x: lax.psum_scatter(x, "d", scatter_dimension=1, tiled=True), "reduce-scatter"),
        (lambda x: lax.all_to_all(x, "d", 1, 1, tiled=True), "all-to-all"),
        (lambda x: lax.ppermute(x, "d", RING), "collective-permute"),
        (lambda x: lax.pbroadcast(x, "d", 0), "collective-broadcast"),
    ],
)
def test_each_primitive(step: Callable[..., Any], kind: str) -> None:
    (collective,) = requested(step)
    assert (collective.kind, collective.executions) == (kind, 1)
    assert collective.shapes == ("float32[2,16]",)
    assert collective.source is not None
    assert Path(collective.source.file).name == "test_requested.py"


def test_operations_without_communication_are_not_collectives() -> None:
    assert kinds(lambda x: x * lax.axis_index("d")) == []
    assert kinds(lambda x: x * lax.psum(1, "d")) == []  # the axis size, a constant
    summed = jax.vmap(lambda row: row + lax.psum(row, "rows"), axis_name="rows")
    assert kinds(summed) == []
    both = jax.vmap(lambda row: lax.psum(row, ("rows", "d")), axis_name="rows")
    assert kinds(both) == [("all-reduce", 1)]


def test_a_collective_whose_result_is_unused_is_requested() -> None:
    def dead(x: jax.Array) -> jax.Array:
        lax.all_gather(x, "d")
        return x

    assert kinds(dead) == [("all-gather", 1)]


def test_scopes_autodiff_and_rematerialisation() -> None:
    @jax.checkpoint
    def layer(x: jax.Array) -> jax.Array:
        with jax.named_scope("layer_0"):
            return jnp.sin(lax.all_gather(x, "d", tiled=True))

    collectives = requested(jax.grad(lambda x: jnp.sum(layer(x))))
    assert [c.kind for c in collectives] == ["all-gather", "all-gather", "reduce-scatter"]
    assert all("layer_0" in c.op_name for c in collectives)
    assert collectives[-1].op_name.endswith("/reduce_scatter")


def test_loops_and_branches() -> None:
    def total(x: jax.Array) -> jax.Array:
        return lax.psum(x, "d")

    def scanned(x: jax.Array) -> jax.Array:
        def outer(y: jax.Array, _: None) -> tuple[jax.Array, None]:
            return lax.fori_loop(0, 3, lambda _, z: total(z), y), None

        return lax.scan(outer, x, None, length=5)[0]

    assert kinds(scanned) == [("all-reduce", 15)]
    while_loop = lax.while_loop
    assert kinds(lambda x: while_loop(lambda y: jnp.all(total(y) < 9), total, x)) == [
        ("all-reduce", None),
        ("all-reduce", None),
    ]
    assert kinds(lambda x: lax.cond(x[0, 0] > 0, total, lambda y: y, x)) == [("all-reduce", None)]
