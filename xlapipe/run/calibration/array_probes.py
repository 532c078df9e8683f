"""Probes of the kernels that XLA emits itself: of elements, sums, moves, indices and sorts."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.run.calibration.timed_program import (
    BF16,
    F32,
    I32,
    Arg,
    Drawn,
    Rng,
    float_type,
    gradient_of_squares,
    one_of,
    shape_of,
    size,
)

_Fn = Callable[..., Any]
_MOST_TRIES = 2e7  # of updates of 16 bits in a scatter: about 0.1 s if they meet in two places
_FUNCTIONS: tuple[_Fn, ...] = (
    *(jnp.exp, jnp.sin, jnp.tanh, jnp.expm1, jnp.cbrt, lax.erf, jax.nn.gelu, jax.nn.silu),
    *(jax.nn.sigmoid, jax.nn.relu, lambda x: jnp.log(jnp.abs(x) + 0.1)),
    *(lambda x: jnp.abs(x) ** 2.5, lambda x: lax.rsqrt(x * x + 1), lambda x: 1 / (x + 3)),
    *(lambda x: jnp.log1p(jnp.abs(x)), lambda x: jnp.atan2(x, x + 1), lambda x: x * 1.5 + 0.1),
    *(lambda x: lax.erf_inv(jnp.tanh(x)), lambda x: lax.lgamma(jnp.abs(x) + 0.1)),
    *(lambda x: jnp.sqrt(x * x + 1), lambda x: jnp.where(x > 0, x, 0.1 * x)),
    *(lambda x: jnp.floor(x * 8) / 8, lambda x: jnp.clip(x, -0.5, 0.5), jnp.negative),
)


def elements(rng: Rng) -> Drawn:
    """Functions of the elements of arrays, rows and columns, with one or several results."""
    shape, dtype = shape_of(rng, int(rng.integers(1, 4)), 8, 25), float_type(rng)
    once, times, results = one_of(rng, _FUNCTIONS), one_of(rng, (1, 1, 4, 16)), int(rng.integers(4))
    others = [tuple(1 if rng.random() < 0.3 else n for n in shape) for _ in range(rng.integers(4))]
    types = [float_type(rng) for _ in range(results)]

    def fn(*arrays: Any) -> Any:
        x = reduce(lambda a, b: a * 0.9 + b, arrays)
        for _ in range(times):
            x = once(x)
        return tuple((x * (1.0 + n)).astype(types[n]) for n in range(results)) or x

    return fn, Arg(shape, dtype), *(Arg(other, dtype) for other in others)


def sums(rng: Rng) -> Drawn:
    """Over any axes, of one array or the product of two; several results, also of gradients."""
    shape, dtype = shape_of(rng, int(rng.integers(2, 5)), 10, 25), float_type(rng)
    over = tuple(np.flatnonzero(rng.random(len(shape)) < 0.5).tolist()) or (len(shape) - 1,)
    way = one_of(rng, ("sum", "max", "both", "place", "spread", "log", "gradient"))
    other = tuple(1 if rng.random() < 0.3 else side for side in shape)

    def fn(x: Any, y: Any) -> Any:
        z = x.astype(F32) * jnp.tanh(y.astype(F32))
        results: dict[str, _Fn] = {
            "sum": lambda: z.sum(over),
            "max": lambda: z.max(over),
            "both": lambda: (z.sum(over), (z * z).sum(over), z.astype(dtype)),
            "place": lambda: jnp.argmax(z, over[-1]),
            "spread": lambda: z / (1 + (z * z).sum(over, keepdims=True)),
            "log": lambda: jax.nn.logsumexp(z, over),
        }
        return results[way]()

    def gradient(x: Any, y: Any) -> Any:
        # The gradient of a value that was broadcast is a sum.
        return gradient_of_squares(lambda x, y: jax.nn.gelu(x + y), (0, 1))(x, y)

    return gradient if way == "gradient" else fn, Arg(shape, dtype), Arg(other, dtype)


def norms(rng: Rng) -> Drawn:
    """Rows that are normalised several times, each time by another rule."""
    width = size(rng, 3, 13)
    rows, dtype = size(rng, 2, 23 - np.log2(width)), float_type(rng)
    rules: tuple[_Fn, ...] = (
        lambda x: x - x.mean(-1, keepdims=True),
        lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6),
        lambda x: jax.nn.softmax(x, -1),
        lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True),
        lambda x: jnp.tanh(x / (1e-3 + jnp.abs(x).max(-1, keepdims=True))),
    )
    chain = [one_of(rng, rules) for _ in range(rng.integers(1, 4))]

    def fn(x: Any, scale: Any) -> Any:
        z = x.astype(F32)
        for rule in chain:
            z = rule(z) * scale.astype(F32)
        return z.astype(dtype)

    backward = rng.random() < 0.4
    both = gradient_of_squares(fn, (0, 1)) if backward else fn
    return both, Arg((rows, width), dtype), Arg((width,), dtype)


def turned(rng: Rng) -> Drawn:
    """Axes in another order, also short ones, with another type or a factor; matrices, bytes."""
    dtype, after = float_type(rng), float_type(rng)
    if rng.random() < 0.3:
        side, narrow = (size(rng, 6, 12), size(rng, 6, 12)), one_of(rng, (dtype, jnp.int8))
        return lambda x, _: x.T + 1, Arg(side, narrow, below=100), Arg((1,))
    short = one_of(rng, (1, 2, 3, 4, 8, 16, 64))
    left = rng.uniform(10, 23) - np.log2(short)
    cut = rng.uniform(2, left - 2)
    dims = [one_of(rng, (1, 2, 4)), size(rng, cut, cut), size(rng, left - cut, left - cut), short]
    shape, order = tuple(dims[n] for n in rng.permutation(4)), rng.permutation(4).tolist()
    way = one_of(rng, ("plain", "scaled", "joined", "summed"))

    def fn(x: Any, scale: Any) -> Any:
        y = x.transpose(order).astype(after)
        if way == "joined":
            return jnp.concatenate([-y, y * 2], -1)
        if way == "summed":
            return y, x.astype(F32).sum(-1)
        return y * jax.nn.sigmoid(scale).astype(after) if way == "scaled" else y

    return fn, Arg(shape, dtype), Arg((1,))


def joined(rng: Rng) -> Drawn:
    """Arrays joined, repeated, padded, shifted, taken apart, stacked, reversed, interleaved."""
    shape, dtype = shape_of(rng, int(rng.integers(2, 5)), 10, 22), float_type(rng)
    axis, count = int(rng.integers(len(shape))), int(rng.integers(1, 5))
    ways: tuple[_Fn, ...] = (
        lambda x, y: jnp.concatenate([x * 2, jnp.tanh(y), x + y], axis),
        lambda x, y: jnp.concatenate([jnp.repeat(x, 2, axis), jnp.repeat(y, 2, axis)], -1),
        lambda x, y: jnp.pad(x * y, [(1, 2)] * x.ndim),
        lambda x, y: x + sum(jnp.roll(y * n, n + 1, (axis + n) % x.ndim) for n in range(count)),
        lambda x, y: jnp.stack([x, y, x * y], axis),
        lambda x, y: jnp.flip(x, axis) * y,
        lambda x, y: jnp.concatenate([jnp.exp(x).sum(-1, keepdims=True), y], -1),
        lambda x, y: lax.slice_in_dim(x, 1, None, axis=axis) * 1.5,
        lambda x, y: lax.pad(x, x.dtype.type(0), [(0, 0, 1)] * x.ndim) * 2,
        lambda x, y: jnp.concatenate(
            [lax.slice_in_dim(x + y, start, None, 2, axis) for start in (0, 1)], axis
        ),
    )
    return one_of(rng, ways), Arg(shape, dtype), Arg(shape, dtype)


def windows(rng: Rng) -> Drawn:
    """The largest or the mean of windows, also their gradients; stencils; patches of pictures."""
    batch, side, channels = size(rng, 0, 4), size(rng, 4, 8), one_of(rng, (1, 3, 16, 64))
    batch = max(1, min(batch, (1 << 22) // (side * side * channels)))
    window, dtype = int(rng.integers(2, 6)), float_type(rng)
    sizes, steps = (1, window, window, 1), (1, one_of(rng, (1, 2)), one_of(rng, (1, 2)), 1)

    def largest(x: Any) -> Any:
        return lax.reduce_window(x, x.dtype.type(-jnp.inf), lax.max, sizes, steps, "SAME")

    def mean(x: Any) -> Any:
        return lax.reduce_window(x, x.dtype.type(0), lax.add, sizes, steps, "SAME") / window**2

    def patches(x: Any) -> Any:
        starts = np.arange(0, side - window + 1)[:, None] + np.arange(window)
        return x[:, starts] * 2

    ways: tuple[_Fn, ...] = (
        *(largest, mean, patches, gradient_of_squares(largest, (0,))),
        gradient_of_squares(mean, (0,)),
        lambda x: x + 0.1 * sum(jnp.roll(x, by, axis) for by in (1, -1) for axis in (1, 2)),
        lambda x: jax.image.resize(x, (batch, 2 * side, side, channels), "bilinear"),
    )
    return one_of(rng, ways), Arg((batch, side, side, channels), dtype)


def gathers(rng: Rng) -> Drawn:
    """Rows or elements of a table at given indices, or at those that a kernel before finds."""
    width = one_of(rng, (1, 1, 3, 16, 64, 256, 1024))
    rows, dtype = size(rng, 8, 24 - np.log2(width)), float_type(rng)
    count = size(rng, 6, min(20.0, 23 - np.log2(width)))
    way = one_of(rng, ("rows", "weighted", "along", "joined", "summed"))
    if way == "along":
        shape = (max(2, count // 64), 64)
        return (
            lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"),
            Arg(shape, dtype),
            Arg((shape[0], 16), I32, below=64),
        )

    def fn(table: Any, index: Any, other: Any, scale: Any) -> Any:
        y = table[index] * scale[:, None]
        if way == "joined":
            return jnp.concatenate([y, table[other]], -1)
        return y.astype(F32).sum(-1) if way == "summed" else y + (way == "weighted")

    places = [Arg((count,), I32, below=max(2, rows)) for _ in range(2)]
    return fn, Arg((rows, width), dtype), *places, Arg((count,), dtype)


def placed(rng: Rng) -> Drawn:
    """A part of each row, at an index, is read or replaced; one part, or one of each row."""
    rows, length, row = size(rng, 2, 10), size(rng, 4, 12), one_of(rng, (1, 4, 64, 128))
    while rows * length * row > 1 << 24:
        length = max(4, length // 2)
    part, reads, dtype = max(1, length // one_of(rng, (4, 16))), rng.random() < 0.5, float_type(rng)

    def one(x: Any, start: Any, new: Any) -> Any:
        if reads:
            return lax.dynamic_slice_in_dim(x, start, part, 0) + new
        return lax.dynamic_update_slice_in_dim(x, new, start, 0)

    if rng.random() < 0.5:
        index = Arg((rows,), I32, below=max(2, length - part))
        return jax.vmap(one), Arg((rows, length, row), dtype), index, Arg((rows, part, row), dtype)
    index = Arg((), I32, below=max(2, length - part))
    return one, Arg((length, rows, row), dtype), index, Arg((part, rows, row), dtype)


def scatters(rng: Rng) -> Drawn:
    """Rows or elements that are added, set or compared at indices, few or many for each place."""
    width = one_of(rng, (1, 1, 3, 16, 64, 512))
    places = one_of(rng, (2, 8, 64, size(rng, 8, 18), size(rng, 8, 18)))
    count = size(rng, 6, min(20.0, 22 - np.log2(width)))
    while places * width > 1 << 24:
        places //= 4
    dtype, way = float_type(rng), one_of(rng, ("add", "add", "set", "max", "summed", "edges"))
    # Updates of 16 bits in one place compare and swap until no other one came between: the number
    # of tries grows with the square of the updates, and a few hundred thousand take minutes.
    if dtype is BF16:
        count = min(count, round((_MOST_TRIES * max(2, places) / width) ** 0.5))
    terms = one_of(rng, (4, 16)) if way == "summed" and count * width < 1 << 20 else 1

    def fn(table: Any, index: Any, of: Any, values: Any) -> Any:
        if way == "edges":
            return jnp.zeros_like(table).at[index].add(table[of] * values[:, 0])
        rows = (values * 2).sum(1)
        return getattr(table.at[index], "add" if way == "summed" else way)(rows)

    index = [Arg((count,), I32, below=max(2, places)) for _ in range(2)]
    return fn, Arg((places, width), dtype), *index, Arg((count, terms, width), dtype)


def sorts(rng: Rng) -> Drawn:
    """Sorted keys, keys with values, and the largest few; of one long array, or of rows."""
    rows = 1 if rng.random() < 0.4 else size(rng, 1, 12)
    columns = size(rng, 4, min(23 if rows == 1 else 15, 23 - np.log2(rows)))
    key = one_of(rng, (F32, F32, BF16, I32))
    count = min(columns, one_of(rng, (1, 4, 8, 16, 50, 64)))
    ways: tuple[_Fn, ...] = (
        lambda x: jnp.sort(x, -1),
        lambda x: jnp.argsort(x, -1),
        lambda x: lax.sort((x, x + 1, x * 2), num_keys=2),
        lambda x: lax.top_k(x, count),
        lambda x: lax.top_k(x, count),
    )
    shape = (columns,) if rows == 1 else (rows, columns)
    return one_of(rng, ways), Arg(shape, key, below=1 << 20)


def copies(rng: Rng) -> Drawn:
    """Copies on the device and to and from the host, and arrays of a constant."""
    n = size(rng, 10, 25)

    def there_and_back(x: Any) -> Any:
        on_host = jax.device_put(x, jax.memory.Space.Host)
        return jax.device_put(on_host, jax.memory.Space.Device) * 2

    ways: tuple[_Fn, ...] = (
        *(jnp.copy, there_and_back, lambda x: jnp.zeros((n,)), lambda x: jnp.ones((n,))),
        lambda x: jax.device_put(x, jax.memory.Space.Host),
    )
    return one_of(rng, ways), Arg((n,))
