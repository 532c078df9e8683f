"""Probes of Pallas kernels, which Triton compiles."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlapipe.run.calibration.timed_program import (
    BF16,
    F16,
    F32,
    Arg,
    Drawn,
    Rng,
    float_type,
    one_of,
)


def _call(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    inputs: list[pl.BlockSpec],
    output: pl.BlockSpec,
    shape: tuple[int, ...],
    dtype: Any,
    warps: int = 4,
    stages: int = 2,
) -> Callable[..., Any]:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        grid=grid,
        in_specs=inputs,
        out_specs=output,
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
    )


def _dot(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, preferred_element_type=F32)


def pallas_products(rng: Rng) -> Drawn:
    """Products of matrices in tiles, with a loop over the terms."""
    rows, columns, terms = (one_of(rng, (512, 1024, 2048, 4096)) for _ in range(3))
    dtype = one_of(rng, (BF16, BF16, F16, F32))
    tiles = [(128, 128, 32, 4, 3), (64, 64, 32, 4, 4), (64, 128, 64, 4, 2), (16, 64, 128, 4, 3)]
    height, side, depth, warps, stages = one_of(
        rng, tiles + [(128, 128, 64, 8, 3)] * (dtype != F32)
    )

    def kernel(x: Any, y: Any, z: Any) -> None:
        def part(step: Any, total: Any) -> Any:
            at = pl.ds(step * depth, depth)
            return total + _dot(x[:, at], y[at, :])

        z[...] = lax.fori_loop(0, terms // depth, part, jnp.zeros((height, side))).astype(dtype)

    specs = [
        pl.BlockSpec((height, terms), lambda i, j: (i, 0)),
        pl.BlockSpec((terms, side), lambda i, j: (0, j)),
    ]
    out, grid = pl.BlockSpec((height, side), lambda i, j: (i, j)), (rows // height, columns // side)
    fn = _call(kernel, grid, specs, out, (rows, columns), dtype, warps, stages)
    return fn, Arg((rows, terms), dtype), Arg((terms, columns), dtype)


def pallas_attention(rng: Rng) -> Drawn:
    """Attention of blocks of queries over blocks of keys, causal or not."""
    batch, length, heads, width = one_of(rng, (1, 4)), one_of(rng, (512, 2048)), 8, 64
    dtype, causal = one_of(rng, (BF16, F16)), rng.random() < 0.5
    height, side, warps = one_of(rng, ((128, 128, 4), (64, 64, 4), (32, 32, 2)))

    def kernel(q: Any, k: Any, v: Any, out: Any) -> None:
        first = pl.program_id(0) * height
        query = q[...]

        def part(step: Any, carry: Any) -> Any:
            total, most, weight = carry
            at = pl.ds(step * side, side)
            score = _dot(query, k[at, :].T) * 0.125
            if causal:
                rows, columns = first + jnp.arange(height), step * side + jnp.arange(side)
                score = jnp.where(rows[:, None] >= columns[None], score, -1e30)
            larger = jnp.maximum(most, score.max(-1))
            share, past = jnp.exp(score - larger[:, None]), jnp.exp(most - larger)
            added = _dot(share.astype(v.dtype), v[at, :])
            return total * past[:, None] + added, larger, weight * past + share.sum(-1)

        zero = jnp.zeros((height, width)), jnp.full((height,), -1e30), jnp.zeros((height,))
        last = pl.cdiv(first + height, side) if causal else length // side
        total, _, weight = lax.fori_loop(0, last, part, zero)
        out[...] = (total / weight[:, None]).astype(out.dtype)

    block = pl.BlockSpec((None, height, None, width), lambda i, b, h: (b, i, h, 0))
    keys = pl.BlockSpec((None, length, None, width), lambda i, b, h: (b, 0, h, 0))
    shape, grid = (batch, length, heads, width), (length // height, batch, heads)
    fn = _call(kernel, grid, [block, keys, keys], block, shape, dtype, warps)
    return fn, *[Arg(shape, dtype)] * 3


def pallas_rows(rng: Rng) -> Drawn:
    """Norms, softmaxes and running sums of rows that a block holds whole."""
    columns, height = one_of(rng, (256, 1024, 4096)), one_of(rng, (1, 2, 4))
    rows, dtype = one_of(rng, (512, 4096, 16384)), float_type(rng)

    def norm(wide: Any) -> Any:
        return wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)

    def softmax(wide: Any) -> Any:
        share = jnp.exp(wide - wide.max(-1, keepdims=True))
        return share / share.sum(-1, keepdims=True)

    once = one_of(rng, (norm, softmax, lambda wide: jnp.cumsum(wide, axis=1)))

    def kernel(x: Any, y: Any) -> None:
        y[...] = once(x[...].astype(F32)).astype(y.dtype)

    block, shape = pl.BlockSpec((height, columns), lambda i: (i, 0)), (rows, columns)
    return _call(kernel, (rows // height,), [block], block, shape, dtype), Arg(shape, dtype)


def pallas_elements(rng: Rng) -> Drawn:
    """Gated activations, and loops of cheap and of expensive operations in registers."""
    elements, dtype = 1 << int(rng.integers(14, 25)), float_type(rng)
    height, warps = one_of(rng, ((256, 1), (1024, 4), (4096, 8)))
    trips = one_of(rng, (1, 1, 32))

    def gated(x: Any, y: Any) -> Any:
        return x * jax.nn.sigmoid(x) * y

    def squares(x: Any, y: Any) -> Any:
        return jnp.where(x * x < 4, x * x + y, x)

    once = one_of(rng, (gated, squares, lambda x, y: jnp.sin(x) + jnp.exp(-y * x)))

    def kernel(x: Any, y: Any, z: Any) -> None:
        wide, other = x[...].astype(F32), y[...].astype(F32)
        z[...] = lax.fori_loop(0, trips, lambda _, w: once(w, other), wide).astype(z.dtype)

    block, arg = pl.BlockSpec((height,), lambda i: (i,)), Arg((elements,), dtype)
    fn = _call(kernel, (elements // height,), [block] * 2, block, (elements,), dtype, warps)
    return fn, arg, arg
