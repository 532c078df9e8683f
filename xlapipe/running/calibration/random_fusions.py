"""Random programs of a calibration that read or write arrays at indices, in windows or in pairs.

XLA makes fusions of them whose threads read memory in patterns of their own. Each is drawn by a
seed: a pattern, sizes, what is computed with its elements, and sometimes the gradient.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.running.calibration.random_calls import drawn, size
from xlapipe.running.calibration.timed_program import BF16, F32, Arg, TimedProgram, programs_of

I32 = jnp.int32
# Ends of names of patterns whose results have no gradient.
_INTEGERS = ("_place", "_places")
_Rng = np.random.Generator
_Drawn = tuple[Any, ...]


def random_fusions() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = []
    for kind, (draw, count) in _KINDS.items():
        parts += [drawn("fused", kind, partial(_finished, draw), seed) for seed in range(count)]
    return programs_of(parts)


def _finished(draw: Callable[[_Rng], _Drawn], rng: _Rng) -> _Drawn:
    """A pattern with arithmetic on its result, and then a sum, a gradient or neither."""
    what, fn, *args = draw(rng)
    change = _CHANGES[rng.integers(len(_CHANGES))]
    floats = tuple(number for number, arg in enumerate(args) if arg.dtype in (F32, BF16))
    ending = rng.choice(["", "", "summed", "gradient"])

    def changed(*arrays: Any) -> Any:
        return jax.tree.map(
            lambda y: change(y) if y.dtype in (F32, BF16) else y * 2 + 1, fn(*arrays)
        )

    def summed(*arrays: Any) -> Any:
        return jax.tree.map(lambda y: y.astype(F32).sum(-1) if y.ndim else y, changed(*arrays))

    def loss(*arrays: Any) -> Any:
        leaves = jax.tree.leaves(changed(*arrays))
        return sum((y.astype(F32) ** 2).mean() for y in leaves if y.dtype in (F32, BF16))

    if ending == "gradient" and floats and not what.endswith(_INTEGERS):
        return f"{what}_gradient", jax.grad(loss, floats[:2]), *args
    return (f"{what}_summed", summed, *args) if ending == "summed" else (what, changed, *args)


_CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda y: y,
    lambda y: 2 * y + 1,
    jax.nn.silu,
    lambda y: jnp.exp(-jnp.abs(y)),
    lambda y: y * lax.rsqrt(y * y + 1),
)


def _type(rng: _Rng) -> Any:
    return F32 if rng.random() < 0.65 else BF16


def _shape(rng: _Rng, axes: int, least: float = 10, most: float = 24) -> tuple[int, ...]:
    """Axes of any sizes; the last one is short as often as long."""
    total = max(rng.uniform(least, most), rng.uniform(least, most))
    shares = rng.dirichlet([2.0] * axes) * total
    return tuple(max(2, size(rng, share, share)) for share in shares)


def _named(shape: tuple[int, ...], dtype: Any = F32) -> str:
    return "x".join(map(str, shape)) + ("_bf16" if dtype == BF16 else "")


def _taken(rng: _Rng) -> _Drawn:
    """Along an axis at indices that are given, or that an earlier kernel finds."""
    shape, dtype = _shape(rng, int(rng.integers(2, 4)), 10, 23), _type(rng)
    axis, way = (
        int(rng.integers(len(shape))),
        str(rng.choice(["given", "given", "order", "largest"])),
    )
    taken = shape[axis] if rng.random() < 0.5 else max(1, shape[axis] // 4)
    of = tuple(taken if number == axis else side for number, side in enumerate(shape))

    def fn(x: Any, indices: Any, keys: Any) -> Any:
        if way == "order":
            indices = lax.slice_in_dim(jnp.argsort(keys, axis), 0, taken, axis=axis)
        elif way == "largest":
            indices = jnp.argmax(keys, axis, keepdims=True)
        return jnp.take_along_axis(x, indices, axis, mode="clip")

    if way == "order" and np.prod(shape) > 1 << 21:
        way = "given"
    name = f"{_named(shape, dtype)}_of_{axis}_{way}"
    return name, fn, Arg(shape, dtype), Arg(of, I32, below=max(2, shape[axis])), Arg(shape)


def _indexed(rng: _Rng) -> _Drawn:
    """At one or two given indices, for each of which a row is read."""
    rows, columns = size(rng, 4, 13), size(rng, 3, 10)
    row = 1 if rng.random() < 0.5 else size(rng, 0, 8)
    count, dtype, two = size(rng, 8, min(21.0, 24 - np.log2(row))), _type(rng), rng.random() < 0.6

    def fn(x: Any, i: Any, j: Any, y: Any) -> Any:
        return (x[i, j] if two else x.reshape(-1, row)[i * columns + j]) * y[:, None]

    indices = (Arg((count,), I32, below=max(2, rows)), Arg((count,), I32, below=max(2, columns)))
    name = f"{_named((rows, columns, row), dtype)}_{count}_{'two' if two else 'one'}"
    return name, fn, Arg((rows, columns, row), dtype), *indices, Arg((count,), dtype)


def _sampled(rng: _Rng) -> _Drawn:
    """Pictures between their points, at places that are given, turned, or shifted a little."""
    batch, height, width = size(rng, 0, 5), size(rng, 5, 9), size(rng, 5, 9)
    channels, way = int(rng.choice([1, 1, 3, 16])), rng.choice(["given", "turned", "shifted"])
    shape = (batch, height, width, channels)

    def one(picture: Any, flow: Any, angle: Any) -> Any:
        y, x = jnp.mgrid[:height, :width].astype(F32)
        if way == "turned":
            y, x = y * jnp.cos(angle) - x * jnp.sin(angle), y * jnp.sin(angle) + x * jnp.cos(angle)
        else:
            far = 1.0 if way == "shifted" else 40.0
            y, x = y + far * flow[..., 0], x + far * flow[..., 1]
        top, left = jnp.floor(y), jnp.floor(x)
        result = jnp.zeros(shape[1:], F32)
        for dy in (0, 1):
            for dx in (0, 1):
                i, j = (top + dy).astype(I32), (left + dx).astype(I32)
                near = (1 - jnp.abs(y - i)) * (1 - jnp.abs(x - j))
                value = picture[i.clip(0, height - 1), j.clip(0, width - 1)]
                result += near[..., None] * value
        return result

    arrays = (Arg(shape), Arg((batch, height, width, 2)), Arg((batch,)))
    return f"{_named(shape)}_{way}", jax.vmap(one), *arrays


def _stencils(rng: _Rng) -> _Drawn:
    """Each element with its neighbours along some axes; at the borders those of the other side."""
    shape, dtype = _shape(rng, int(rng.integers(2, 5)), 10, 24), _type(rng)
    count, padded = int(rng.integers(1, 9)), rng.random() < 0.4
    shifts = [
        (int(rng.choice([-2, -1, 1, 2])), int(rng.integers(len(shape)))) for _ in range(count)
    ]

    def moved(x: Any, by: int, axis: int) -> Any:
        if not padded:
            return jnp.roll(x, by, axis)
        pads = [(0, 0, 0)] * x.ndim
        pads[axis] = (by, -by, 0)
        return lax.pad(x, x.dtype.type(0), pads)

    def fn(x: Any, y: Any) -> Any:
        return x + y * sum(moved(x * (0.1 + n), by, axis) for n, (by, axis) in enumerate(shifts))

    return f"{_named(shape, dtype)}_{count}", fn, Arg(shape, dtype), Arg(shape, dtype)


def _windows(rng: _Rng) -> _Drawn:
    """Windows of a signal or of pictures, one beside the other."""
    dtype, window = _type(rng), int(rng.integers(2, 17))
    if rng.random() < 0.5:
        batch, length, channels = size(rng, 0, 8), size(rng, 6, 13), int(rng.choice([1, 4, 32, 80]))
        batch = max(1, min(batch, (1 << 23) // (length * channels * window)))
        step = int(rng.integers(1, window + 1))
        starts = np.arange(0, max(1, length - window), step)
        shape = (batch, length, channels)
        at = starts[:, None] + np.arange(window)
        return f"{_named(shape, dtype)}_{window}_{step}", lambda x: x[:, at], Arg(shape, dtype)
    batch, side, channels = size(rng, 0, 5), size(rng, 3, 8), int(rng.choice([1, 3, 8, 64]))
    side, window = max(side // 8 * 8, 8), int(rng.choice([2, 4, 8]))
    batch = max(1, min(batch, (1 << 23) // (side * side * channels)))
    image, order = (batch, side, side, channels), rng.permutation([1, 2, 3, 4, 5])

    def fn(x: Any) -> Any:
        parts = x.reshape(batch, side // window, window, side // window, window, channels)
        return parts.transpose(0, *order).reshape(batch, -1, window * window * channels)

    return f"{_named(image, dtype)}_{window}_{''.join(map(str, order))}", fn, Arg(image, dtype)


def _scanned(rng: _Rng) -> _Drawn:
    """Sums that go on along an axis, plain or decayed, in trees."""
    shape, dtype = _shape(rng, int(rng.integers(1, 4)), 9, 22), F32
    axis = int(rng.integers(len(shape)))
    if rng.random() < 0.5:
        return f"{_named(shape)}_of_{axis}_sum", lambda x: jnp.cumsum(x, axis), Arg(shape, dtype)

    def combined(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def fn(x: Any, decay: Any) -> Any:
        return lax.associative_scan(combined, (jax.nn.sigmoid(decay), x), axis=axis)[1]

    return f"{_named(shape)}_of_{axis}_decayed", fn, Arg(shape, dtype), Arg(shape, dtype)


def _sums(rng: _Rng) -> _Drawn:
    """Over any axes, of a product of two arrays; several results of the same elements."""
    shape, dtype = _shape(rng, int(rng.integers(2, 5)), 10, 25), _type(rng)
    axes = tuple(np.flatnonzero(rng.random(len(shape)) < 0.5).tolist()) or (len(shape) - 1,)
    way = rng.choice(["sum", "sum", "largest", "place", "both", "spread"])

    def fn(x: Any, y: Any) -> Any:
        z = x.astype(F32) * y.astype(F32)
        if way == "place":
            return jnp.argmax(z, axes[-1])
        if way == "largest":
            return z.max(axes)
        if way == "both":
            return (z.sum(axes), (z * z).sum(axes), z)
        total = z.sum(axes, keepdims=way == "spread")
        return z / (1 + total * total) if way == "spread" else total

    other = tuple(1 if rng.random() < 0.3 else side for side in shape)
    name = f"{_named(shape, dtype)}_of_{''.join(map(str, axes))}_{way}"
    return name, fn, Arg(shape, dtype), Arg(other, dtype)


def _pairs(rng: _Rng) -> _Drawn:
    """Every row with every other one: distances, the nearest, or sums of forces."""
    rows, columns, width = size(rng, 4, 13), size(rng, 4, 12), int(rng.choice([1, 2, 3, 4, 8, 32]))
    while rows * columns * width > 1 << 26:
        rows = rows // 2
    way = rng.choice(["distances", "nearest", "forces", "places"])

    def fn(x: Any, y: Any) -> Any:
        apart = x[:, None] - y[None]
        squares = (apart * apart).sum(-1)
        if way == "nearest":
            return squares.min(1)
        if way == "places":
            return jnp.argmin(squares, 1)
        if way == "forces":
            return (apart / (1 + squares)[..., None]).sum(1)
        return jnp.exp(-squares)

    return f"{rows}x{columns}x{width}_{way}", fn, Arg((rows, width)), Arg((columns, width))


def _masked(rng: _Rng) -> _Drawn:
    """Elements that a comparison of indices or of labels leaves, then their shares or sums."""
    shape, dtype = _shape(rng, int(rng.integers(2, 4)), 10, 24), _type(rng)
    way, axis = rng.choice(["before", "labels", "one", "length"]), int(rng.choice([-1, -1, -2]))

    def fn(x: Any, labels: Any, lengths: Any) -> Any:
        i, j = (lax.broadcasted_iota(I32, shape, n) for n in (len(shape) - 2, len(shape) - 1))
        if way == "before":
            kept = i >= j
        elif way == "labels":
            kept = labels[:, None] == labels[None] if len(shape) == 2 else i % 7 == j % 7
        else:
            kept = j == lengths[..., None] if way == "one" else j < lengths[..., None]
        if kept.shape != shape:
            kept = i % 5 > j % 5
        wide = jnp.where(kept, x.astype(F32), 0.0 if way == "one" else -1e9)
        return wide.sum(axis) if way == "one" else jax.nn.softmax(wide, axis).astype(dtype)

    labels, lengths = Arg(shape[-2:-1], I32, below=10), Arg(shape[:-1], I32, below=shape[-1])
    return f"{_named(shape, dtype)}_{way}_of_{axis}", fn, Arg(shape, dtype), labels, lengths


def _joined(rng: _Rng) -> _Drawn:
    """Arrays beside each other, of which some are computed, summed, slices or at indices."""
    rows, dtype = size(rng, 6, 16), _type(rng)
    widths = [size(rng, 0, min(9.0, 22 - np.log2(rows))) for _ in range(rng.integers(2, 5))]
    choices = ["plain", "computed", "sum", "slice", "taken", "constant"]
    ways = [str(rng.choice(choices)) for _ in widths]
    terms = int(rng.integers(2, 40))
    sides = [(terms if way == "sum" else 1, width) for way, width in zip(ways, widths, strict=True)]
    if rows * max(widths) * terms > 1 << 25:
        rows = 16

    def part(way: str, x: Any, indices: Any) -> Any:
        if way == "sum":
            return jnp.tanh(x.astype(F32)).sum(1).astype(dtype)
        x = x[:, 0]
        if way == "computed":
            return jax.nn.gelu(x) * 2
        if way == "slice":
            return x[:, ::-1]
        if way == "taken":
            return x[indices]
        return jnp.full_like(x, 0.5) if way == "constant" else x

    def fn(indices: Any, *arrays: Any) -> Any:
        parts = [part(way, x, indices) for way, x in zip(ways, arrays, strict=True)]
        return jnp.concatenate(parts, 1)

    name = f"{_named((rows, *widths), dtype)}_{'_'.join(w[:2] for w in ways)}"
    arrays = (Arg((rows, *side), dtype) for side in sides)
    return name, fn, Arg((rows,), I32, below=rows), *arrays


def _scattered(rng: _Rng) -> _Drawn:
    """Rows that are read at one index, weighted, and added at another; few meet in one place."""
    nodes, edges = size(rng, 7, 17), size(rng, 10, 20)
    row = int(rng.choice([1, 1, 3, 16, 64, 128]))
    while edges * row > 1 << 23:
        edges //= 2
    way, dtype = str(rng.choice(["add", "add", "add", "max", "set"])), F32

    def fn(x: Any, of: Any, to: Any, weights: Any) -> Any:
        rows = x[of] * weights[:, None]
        return getattr(jnp.zeros((nodes, row), dtype).at[to], way)(rows, mode="drop")

    places = (Arg((edges,), I32, below=max(2, nodes)), Arg((edges,), I32, below=max(2, nodes)))
    return f"{nodes}_{edges}x{row}_{way}", fn, Arg((nodes, row)), *places, Arg((edges,))


def _met(rng: _Rng) -> _Drawn:
    """Rows that are added in a few places, such as the gradient of a table of two rows."""
    places, row = int(rng.choice([1, 2, 2, 3, 4, 8, 16, 64])), size(rng, 5, 10.5)
    rows, dtype = size(rng, 6, min(13.0, 21 - np.log2(row))), _type(rng)

    def fn(rows: Any, to: Any) -> Any:
        return jnp.zeros((places, row), dtype).at[to].add(rows)

    name = f"{_named((rows, row), dtype)}_in_{places}"
    return name, fn, Arg((rows, row), dtype), Arg((rows,), I32, below=max(2, places))


def _placed(rng: _Rng) -> _Drawn:
    """A part of each row is read or replaced, where an index of the row says."""
    rows, length, row = size(rng, 2, 10), size(rng, 4, 12), int(rng.choice([1, 4, 64, 128]))
    while rows * length * row > 1 << 24:
        length = max(4, length // 2)
    part, dtype, reads = (
        max(1, length // int(rng.choice([4, 16, 64]))),
        _type(rng),
        rng.random() < 0.6,
    )

    def one(x: Any, start: Any, new: Any) -> Any:
        if reads:
            return lax.dynamic_slice_in_dim(x, start, part, 0) + new
        return lax.dynamic_update_slice_in_dim(x, new, start, 0)

    arrays = (Arg((rows, length, row), dtype), Arg((rows,), I32, below=max(2, length - part)))
    name = f"{_named((rows, length, row), dtype)}_{part}_{'read' if reads else 'replaced'}"
    return name, jax.vmap(one), *arrays, Arg((rows, part, row), dtype)


def _many(rng: _Rng) -> _Drawn:
    """Several results of the same arrays, of which some are integers, in any width."""
    shape, dtype = _shape(rng, int(rng.integers(1, 4)), 9, 23), _type(rng)
    count, inputs = int(rng.integers(2, 12)), int(rng.integers(1, 5))

    def fn(*arrays: Any) -> Any:
        total = reduce(lambda a, b: a * 0.9 + b, arrays)
        results = []
        for number in range(count):
            y = arrays[number % inputs] * (1.0 + number) + total
            results.append(jnp.floor(y).astype(I32) if number % 3 == 2 else y)
        return tuple(results)

    name = f"{_named(shape, dtype)}_{inputs}_to_{count}"
    return name, fn, *(Arg(shape, dtype) for _ in range(inputs))


_KINDS: dict[str, tuple[Callable[[_Rng], _Drawn], int]] = {
    "taken": (_taken, 64),
    "indexed": (_indexed, 48),
    "sampled": (_sampled, 40),
    "stencils": (_stencils, 64),
    "windows": (_windows, 48),
    "scanned": (_scanned, 56),
    "sums": (_sums, 100),
    "pairs": (_pairs, 40),
    "masked": (_masked, 64),
    "joined": (_joined, 80),
    "scattered": (_scattered, 56),
    "met": (_met, 32),
    "placed": (_placed, 40),
    "many": (_many, 60),
}
