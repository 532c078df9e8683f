"""Steps with another form: what dominates their memory can be computed in blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from xlapipe import Workload

Array = jax.Array
PATCH, STRIDE = 8, 2


def score(weights: Array, image: Array, corner: Array) -> Array:
    patch = jax.lax.dynamic_slice(image, (corner[0], corner[1]), (PATCH, PATCH)).reshape(-1)
    return jnp.sum(jnp.tanh(weights @ (patch - patch.mean())) ** 2)


def corners(side: int) -> Array:
    places = jnp.arange(0, side - PATCH + 1, STRIDE)
    return jnp.stack(jnp.meshgrid(places, places, indexing="ij"), -1).reshape(-1, 2)


def patches(weights: Array, image: Array) -> Any:
    def loss(weights: Array, image: Array) -> Array:
        at = corners(image.shape[0])
        return jax.vmap(score, in_axes=(None, None, 0))(weights, image, at).mean()

    return jax.value_and_grad(loss)(weights, image)


def neighbours(positions: Array) -> Array:
    """The six nearest of each point, by periodic distances of all pairs."""

    @partial(jax.vmap, in_axes=(0, None), out_axes=1)
    def nearest(point: Array, others: Array) -> Array:
        apart = point - others
        apart -= jnp.round(apart)
        return jax.lax.top_k(-jnp.sum(apart**2, axis=-1), 6)[1]

    return nearest(positions, positions)


def kernel_product(points: Array, values: Array, scale: Array) -> Array:
    """The kernel matrix of a Gaussian process times a vector."""

    def entry(x: Array, y: Array) -> Array:
        return jnp.exp(-jnp.sum((x - y) ** 2) / scale)

    def row(x: Array) -> Array:
        return jax.vmap(entry, (None, 0))(x, points) @ values

    return jax.vmap(row)(points)


def patches_workload(side: int = 512) -> Workload:
    return _workload(patches, (64, PATCH * PATCH), (side, side))


def neighbours_workload(points: int = 4096) -> Workload:
    return _workload(neighbours, (points, 3))


def kernel_workload(points: int = 4096) -> Workload:
    return _workload(kernel_product, (points, 4), (points, 8), ())


def _workload(step: Callable[..., Any], *shapes: tuple[int, ...]) -> Workload:
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return Workload(name=step.__name__, fn=step, args=args)
