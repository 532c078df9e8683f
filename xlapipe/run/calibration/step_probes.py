"""Probes of what XLA fuses in a step: chains of layers, and updates."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.run.calibration.timed_program import (
    F32,
    I32,
    Arg,
    Drawn,
    Rng,
    float_type,
    gradient_of_squares,
    one_of,
    size,
)

_TRIPS = 12
_Shape = tuple[int, int, int]


def chains(rng: Rng) -> Drawn:
    """A few layers in turn, sometimes in a loop, and sometimes with their gradient."""
    dtype, width = float_type(rng), size(rng, 1, 7) * 8
    rows = size(rng, 5, 11)
    first = shape = (max(1, min(size(rng, 0, 6), (1 << 23) // (rows * width))), rows, width)
    args, stages = [Arg(first, dtype)], []
    for _ in range(rng.integers(2, 6)):
        stage, shape, *added = one_of(rng, _STAGES)(rng, shape, dtype)
        stages.append((stage, slice(len(args), len(args) + len(added))))
        args += added

    def once(x: Any, arrays: Any) -> Any:
        for stage, key in stages:
            x = stage(x, *arrays[key])
        return x

    def fn(*arrays: Any) -> Any:
        return once(arrays[0], arrays)

    def looped(*arrays: Any) -> Any:
        trips = jnp.arange(_TRIPS)
        return lax.scan(lambda x, _: (once(x, arrays), None), arrays[0], trips)[0]

    forward = looped if shape == first and rng.random() < 0.4 else fn
    floats = tuple(number for number, arg in enumerate(args) if arg.dtype != I32)
    backward = rng.random() < 0.5
    return gradient_of_squares(forward, floats) if backward else forward, *args


def _other(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    sides = one_of(rng, (shape, (1, 1, shape[2]), (*shape[:2], 1)))
    adds = rng.random() < 0.5
    return lambda x, y: x + y if adds else x * y, shape, Arg(sides, dtype)


def _norm(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    centred = float(rng.random() < 0.5)

    def stage(x: Any, scale: Any) -> Any:
        wide = x.astype(F32)
        wide = wide - centred * wide.mean(-1, keepdims=True)
        normed = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        return normed.astype(x.dtype) * scale

    return stage, shape, Arg(shape[2:], dtype)


def _product(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    outputs, then = size(rng, 1, 8) * 8, one_of(rng, (jax.nn.gelu, lambda y: y))
    weight, bias = Arg((shape[2], outputs), dtype, scale=shape[2] ** -0.5), Arg((outputs,), dtype)
    return lambda x, w, b: then(x @ w + b), (*shape[:2], outputs), weight, bias


def _attention(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    if shape[0] * shape[1] ** 2 > 1 << 24:
        return _norm(rng, shape, dtype)

    def stage(x: Any) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", x, x).astype(F32) * shape[2] ** -0.5
        seen = jnp.tril(jnp.ones((shape[1], shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1).astype(x.dtype)
        return jnp.einsum("bqk,bkd->bqd", weights, x)

    return stage, shape


def _transposed(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    a, b, c = rng.permutation(3).tolist()
    return lambda x: x.transpose(a, b, c) * 2, (shape[a], shape[b], shape[c])


def _gathered(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    rows = min(size(rng, 4, 18), (1 << 24) // shape[2])
    index = Arg(shape[:2], I32, below=max(2, rows))
    return lambda x, t, i: x * t[i], shape, Arg((rows, shape[2]), dtype), index


def _without_array(rng: Rng, shape: _Shape, dtype: Any) -> Drawn:
    axis, group = int(rng.integers(3)), 2 if shape[2] % 2 == 0 else 1

    def short_sums(x: Any) -> Any:
        groups = x.astype(F32).reshape(*x.shape[:2], -1, group)
        return (groups / (1 + (groups * groups).sum(-1, keepdims=True))).reshape(x.shape)

    key = jax.random.key(0)
    stages: tuple[Callable[[Any], Any], ...] = (
        *(jax.nn.gelu, jax.nn.silu, jnp.tanh, jax.nn.relu, lax.erf, short_sums),
        *(partial(jax.nn.softmax, axis=axis), lambda x: jnp.cumsum(x * 0.01, axis)),
        *(lambda x: x - jnp.roll(x, 1, axis), lambda x: jax.nn.silu(x) * jnp.flip(x, axis)),
        lambda x: jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0),
    )
    stage = one_of(rng, stages)
    return lambda x: stage(x).astype(dtype), shape


_STAGES = (
    *(_without_array, _without_array, _without_array, _other, _other, _norm, _norm),
    *(_product, _product, _attention, _transposed, _gathered),
)


def updates(rng: Rng) -> Drawn:
    """An optimizer's update of several arrays, clipped by the norm of all gradients."""
    sides = [(size(rng, 4, 12), size(rng, 4, 12)) for _ in range(rng.integers(2, 8))]
    clipped, dtype = rng.random() < 0.5, float_type(rng)

    def fn(*arrays: Any) -> Any:
        params, first, second, slopes = (arrays[n::4] for n in range(4))
        total = sum((g.astype(F32) ** 2).sum() for g in slopes)
        scale = jnp.minimum(1, lax.rsqrt(total + 1e-6)) if clipped else 1.0
        results = []
        for p, old_m, old_v, slope in zip(params, first, second, slopes, strict=True):
            g = slope.astype(F32) * scale
            m, v = 0.9 * old_m + 0.1 * g, 0.95 * old_v + 0.05 * g * g
            results.append(((p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(dtype), m, v))
        return results

    args = [(Arg(side), Arg(side), Arg(side, scale=0.0), Arg(side, dtype)) for side in sides]
    return fn, *(arg for four in args for arg in four)
