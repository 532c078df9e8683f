"""Random programs of a calibration with a few operations each that steps do one after another.

Each is drawn by a seed. What one kernel does with several results of sums, with axes of few
elements or with rows of odd lengths depends on how XLA divides it into tiles.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.running.calibration.random_calls import drawn, gradient_of_squares, size
from xlapipe.running.calibration.timed_program import (
    F32,
    TYPES,
    Arg,
    TimedProgram,
    joined,
    programs_of,
)

_Rng = np.random.Generator
_Drawn = tuple[Any, ...]
_I32, _C64 = jnp.int32, jnp.complex64


def random_steps() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = []
    for kind, (draw, count) in _KINDS.items():
        parts += [drawn("part", kind, draw, seed) for seed in range(count)]
    return programs_of(parts)


def _type(rng: _Rng) -> tuple[Any, str]:
    return TYPES[int(rng.integers(2))]


def _fields(rng: _Rng) -> _Drawn:
    """Steps of equations on a periodic grid: derivatives of the components of a vector."""
    axes = int(rng.choice([2, 3, 3]))
    side = size(rng, *{2: (6, 11), 3: (4, 7.6)}[axes])
    first, turns = bool(rng.random() < 0.7), int(rng.choice([1, 1, 4]))
    way = str(rng.choice(["curl", "waves", "diffused", "carried"]))
    start = int(first)

    def along(x: Any, axis: int, by: int = -1) -> Any:
        return jnp.roll(x, by, axis) - x

    def parts(x: Any) -> list[Any]:
        return [x[n] if first else x[..., n] for n in range(axes)]

    def joined_again(components: list[Any]) -> Any:
        return jnp.stack(components, 0 if first else -1)

    def fn(e: Any, b: Any) -> Any:
        def once(_: Any, both: Any) -> Any:
            x, y = both
            if way == "diffused":
                axis_numbers = range(start, start + axes)
                moved = sum(jnp.roll(x, by, axis) for axis in axis_numbers for by in (-1, 1))
                return x + 0.1 * (moved - 2 * axes * x), y
            one, other = parts(x), parts(y)
            if way == "carried":
                change = [sum(one[j] * along(c, j, 1) for j in range(axes)) for c in one]
                return x - 0.1 * joined_again(change), y
            if way == "waves":
                spread = sum(along(c, n, 1) for n, c in enumerate(one))
                new = [c + 0.2 * along(spread, n) for n, c in enumerate(other)]
                return x, joined_again(new)
            curl = [
                along(other[(n + 2) % axes], (n + 1) % axes)
                - along(other[(n + 1) % axes], (n + 2) % axes)
                for n in range(axes)
            ]
            return x + 0.1 * joined_again(curl), y

        return lax.fori_loop(0, turns, once, (e, b)) if turns > 1 else once(0, (e, b))

    shape = (axes, *(side,) * axes) if first else (*(side,) * axes, axes)
    return f"{way}_{joined(shape)}_{turns}", fn, Arg(shape), Arg(shape)


def _weights(rng: _Rng) -> _Drawn:
    """Weights that are centred, scaled, clipped by the norms of their columns, and moved."""
    window = int(rng.choice([1, 1, 3, 5]))
    inputs, outputs = size(rng, 3, 10), size(rng, 3, 10.5)
    dtype, tag = _type(rng)
    over = (0, 1, 2) if rng.random() < 0.8 else (3,)
    way = str(rng.choice(["standard", "standard", "clipped", "normal", "both"]))

    def standard(w: Any) -> Any:
        wide = w.astype(F32)
        wide = wide - wide.mean(over, keepdims=True)
        return wide * lax.rsqrt(wide.var(over, keepdims=True) + 1e-5)

    def normal(w: Any) -> Any:
        return w / jnp.maximum(1e-3, jnp.sqrt((w * w).sum(over, keepdims=True)))

    def clipped(w: Any, g: Any) -> Any:
        most = 0.02 * jnp.sqrt((w * w).sum(over, keepdims=True))
        norm = jnp.sqrt((g.astype(F32) ** 2).sum(over, keepdims=True))
        return jnp.where(norm > most, g * (most / jnp.maximum(norm, 1e-6)), g)

    def fn(w: Any, g: Any) -> Any:
        if way == "standard":
            return standard(w).astype(dtype)
        if way == "normal":
            return normal(w)
        if way == "clipped":
            return w - 0.1 * clipped(w, g)
        _, back = jax.vjp(standard, w)
        return w - 0.1 * clipped(w, back(g.astype(F32))[0])

    shape = (window, window, inputs, outputs)
    return f"{way}_{joined(shape)}_{tag}_{len(over)}", fn, Arg(shape), Arg(shape, dtype)


def _chains(rng: _Rng) -> _Drawn:
    """Rows that are normalised several times, each time by another rule."""
    width = size(rng, 3, 12)
    rows = size(rng, 2, 23 - math.log2(width))
    dtype, tag = _type(rng)
    rules: dict[str, Callable[[Any], Any]] = {
        "m": lambda x: x - x.mean(-1, keepdims=True),
        "r": lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6),
        "s": lambda x: jax.nn.softmax(x, -1),
        "l": lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True),
        "t": lambda x: jnp.tanh(x / (1e-3 + jnp.abs(x).max(-1, keepdims=True))),
    }
    chain = "".join(rng.choice(list(rules), int(rng.integers(2, 5))))

    def fn(x: Any, y: Any) -> Any:
        z = x.astype(F32)
        for letter in chain:
            z = rules[letter](z) + y.astype(F32)
        return z.astype(dtype)

    backward = bool(rng.random() < 0.4)
    name = f"{chain}_{rows}x{width}_{tag}" + "_gradient" * backward
    arg = Arg((rows, width), dtype)
    return name, gradient_of_squares(fn, (0,)) if backward else fn, arg, arg


def _critics(rng: _Rng) -> _Drawn:
    """The gradient of a gradient's norm, of a convolution or of products, as critics are bound."""
    dtype, tag = _type(rng)
    batch, outputs = size(rng, 1, 6), int(rng.choice([1, 1, 4, 64, 128]))
    if rng.random() < 0.3:
        width = size(rng, 5, 11)
        shapes: tuple[tuple[int, ...], ...] = ((batch * 8, width), (width, width), (width, outputs))
    else:
        side, inputs = int(rng.choice([4, 8, 16, 32, 64])), int(rng.choice([3, 32, 64, 128, 512]))
        batch = max(1, min(batch, (1 << 22) // (side * side * inputs)))
        window = int(rng.choice([1, 3, 3, 4, 5]))
        shapes = ((batch, side, side, inputs), (window, window, inputs, outputs))
    stride = int(rng.choice([1, 2]))

    def judged(x: Any, *weights: Any) -> Any:
        for w in weights:
            if w.ndim == 2:
                x = jax.nn.leaky_relu(x @ w)
            else:
                layout = ("NHWC", "HWIO", "NHWC")
                x = lax.conv_general_dilated(
                    x, w, (stride, stride), "SAME", dimension_numbers=layout
                )
        return jnp.tanh(x.astype(F32)).sum()

    def fn(x: Any, *weights: Any) -> Any:
        def penalty(*inner: Any) -> Any:
            return (jax.grad(judged)(x, *inner).astype(F32) ** 2).sum()

        return jax.grad(penalty, tuple(range(len(weights))))(*weights)

    scaled = [Arg(shape, dtype, scale=math.prod(shape[:-1]) ** -0.5) for shape in shapes[1:]]
    name = f"{tag}_{joined(shapes[0])}_{joined(shapes[1])}_{stride}"
    return name, fn, Arg(shapes[0], dtype), *scaled


def _equations(rng: _Rng) -> _Drawn:
    """Equations with one large triangle, and what a Gaussian process needs of its covariance."""
    rows, columns = size(rng, 8, 12), 1 if rng.random() < 0.2 else size(rng, 5, 11.5)
    way = str(rng.choice(["left", "left", "right", "transposed", "factored", "evidence"]))
    if way == "evidence":
        rows = min(rows, 2000)

    def fn(a: Any, b: Any) -> Any:
        if way == "factored":
            return jax.scipy.linalg.cho_solve((jnp.tril(a), True), b)
        if way == "evidence":

            def evidence(a: Any) -> Any:
                lower = jnp.linalg.cholesky(a + a.T)
                inside = lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)
                return (inside * inside).sum() + jnp.log(jnp.diagonal(lower)).sum()

            return jax.grad(evidence)(a)
        left, x = way != "right", b.T if way == "right" else b
        return lax.linalg.triangular_solve(
            a, x, left_side=left, lower=True, transpose_a=way == "transposed"
        )

    square = Arg((rows, rows), scale=0.3 / math.sqrt(rows), identity=4.0)
    return f"{way}_{rows}x{columns}", fn, square, Arg((rows, columns))


def _short_axes(rng: _Rng) -> _Drawn:
    """Axes of few elements that go to another place, with a change of type or a product."""
    short = int(rng.choice([2, 3, 4, 4, 6, 8, 12, 16]))
    left = rng.uniform(10, 23) - math.log2(short)
    cut = rng.uniform(2, left - 2)
    first, second = size(rng, cut, cut + 0.01), size(rng, left - cut, left - cut + 0.01)
    dtype, tag = _type(rng)
    other, tag_after = _type(rng)
    order = list(map(int, rng.permutation([0, 1, 2, 3])))
    dims = [int(rng.choice([1, 2, 4])), first, second, short]
    shape = tuple(dims[n] for n in rng.permutation(4))
    way = str(rng.choice(["plain", "scaled", "halves"]))

    def fn(x: Any, scale: Any) -> Any:
        y = x.transpose(order).astype(other)
        if way == "halves":
            return jnp.concatenate([-y[..., 1::2], y[..., ::2]], -1)
        return y * jax.nn.sigmoid(scale).astype(other) if way == "scaled" else y

    letters = "".join(map(str, order))
    return f"{way}_{joined(shape)}_{letters}_{tag}_{tag_after}", fn, Arg(shape, dtype), Arg((1,))


def _bodies(rng: _Rng) -> _Drawn:
    """Each of n bodies with each other one, n mostly odd: forces, energies, kernels."""
    count, axes = size(rng, 6, 12.3) | int(rng.random() < 0.7), int(rng.choice([1, 2, 3, 3, 8]))
    way = str(rng.choice(["forces", "forces", "energy", "kernel", "springs"]))
    while count * count * axes > 1 << 26:
        count = count * 2 // 3 | 1

    def energy(x: Any, mass: Any) -> Any:
        apart = x[:, None] - x[None]
        return (mass * lax.rsqrt((apart * apart).sum(-1) + 0.01)).sum()

    def fn(x: Any, mass: Any) -> Any:
        if way == "energy":
            return jax.grad(energy)(x, mass)
        apart = x[None] - x[:, None]
        squares = (apart * apart).sum(-1)
        if way == "kernel":
            scale = jnp.exp(-0.5 * squares)
            return scale + 0.1 * jnp.eye(count), scale * squares
        if way == "springs":
            near = squares < 1.0
            return jnp.where(near[..., None], apart * (1 - squares[..., None]), 0.0).sum(1)
        inverse = lax.rsqrt(squares + 0.01)
        return jnp.einsum("ij,ijk->ik", mass * inverse * inverse * inverse, apart)

    return f"{way}_{count}x{axes}", fn, Arg((count, axes)), Arg((count,))


def _complex(rng: _Rng) -> _Drawn:
    """Complex numbers: products of elements and of matrices, decays that go on along an axis."""
    way = str(rng.choice(["elements", "matrices", "recurrence", "turned", "gates"]))
    rows, width = size(rng, 4, 11), size(rng, 4, 10)
    batch = max(1, min(size(rng, 0, 6), (1 << 22) // (rows * width)))

    def recurrence(x: Any, decay: Any) -> Any:
        def combined(left: Any, right: Any) -> Any:
            return left[0] * right[0], left[1] * right[0] + right[1]

        steps = jnp.broadcast_to(decay[0, :1] * 0.5, x.shape)
        return lax.associative_scan(combined, (steps, x), axis=1)[1].real

    def fn(real: Any, imaginary: Any, other: Any) -> Any:
        x = real + 1j * imaginary
        w = other * jnp.exp(1j * other)
        if way == "matrices":
            return x @ w
        if way == "recurrence":
            return recurrence(x, w[None])
        if way == "turned":
            return jnp.swapaxes(x * jnp.conj(x), 1, 2).real
        if way == "gates":
            halves = x[..., : width // 2 * 2].reshape(batch, rows, -1, 2)
            gate = w[:2, :2].astype(_C64)
            return jnp.einsum("brnk,kl->brnl", halves, gate)
        return jnp.abs(x) + (x * x * w[:1]).real

    arg = Arg((batch, rows, width))
    return f"{way}_{batch}x{rows}x{width}", fn, arg, arg, Arg((width, width), scale=width**-0.5)


def _routed(rng: _Rng) -> _Drawn:
    """Tokens that are sent to experts: the largest scores, places by counting, rows that move."""
    tokens, experts = size(rng, 6, 13), int(rng.choice([4, 8, 8, 16, 32, 64, 128]))
    chosen, width = int(rng.choice([1, 2, 2, 4])), size(rng, 5, 10)
    while tokens * width > 1 << 22:
        width = width // 2
    room = max(1, 2 * tokens * chosen // experts)
    while tokens * experts * room > 1 << 25:
        room = max(1, room // 2)
    way = str(rng.choice(["places", "dispatched", "gathered"]))
    dtype, tag = _type(rng)

    def fn(scores: Any, x: Any) -> Any:
        weights, which = lax.top_k(jax.nn.softmax(scores, -1), chosen)
        hot = jax.nn.one_hot(which, experts, dtype=_I32)
        places = (jnp.cumsum(hot.reshape(-1, experts), 0) - 1).reshape(tokens, chosen, experts)
        place = (places * hot).sum(-1)
        if way == "places":
            return place, jnp.where(place < room, weights, 0.0)
        if way == "gathered":
            row = jnp.where(place < room, which * room + place, experts * room)
            table = jnp.zeros((experts * room + 1, width), dtype)
            table = table.at[row.reshape(-1)].set(jnp.repeat(x, chosen, 0))
            return (table[row] * weights[..., None].astype(dtype)).sum(1)
        spread = jax.nn.one_hot(jnp.where(place < room, place, -1), room, dtype=F32)
        kept = jnp.einsum("tkr,tke,tk->ter", spread, hot.astype(F32), weights)
        return jnp.einsum("ter,td->erd", kept.astype(dtype), x)

    name = f"{way}_{tokens}x{experts}x{chosen}_{room}x{width}_{tag}"
    return name, fn, Arg((tokens, experts)), Arg((tokens, width), dtype)


def _tables(rng: _Rng) -> _Drawn:
    """Rows of tables at the corners around points, weighted; and what comes back to the tables."""
    axes, width = int(rng.choice([2, 3, 3])), int(rng.choice([1, 2, 2, 4, 8, 16]))
    rows, points = size(rng, 10, 20 - math.log2(width)), size(rng, 10, 17)
    levels = int(rng.choice([1, 2, 4]))
    hashed = bool(rng.random() < 0.5)

    def one(table: Any, at: Any, level: int) -> Any:
        scaled = jnp.abs(at) * (7.0 * 2**level)
        corner = jnp.floor(scaled).astype(jnp.uint32)
        part = scaled - corner
        total = 0.0
        for number in range(1 << axes):
            bits = np.array([number >> axis & 1 for axis in range(axes)], np.uint32)
            cell = corner + bits
            index: Any
            if hashed:
                index = cell[:, 0]
                for axis, prime in zip(range(1, axes), (2654435761, 805459861), strict=False):
                    index = index ^ (cell[:, axis] * np.uint32(prime))
            else:
                index = sum(cell[:, axis] * np.uint32(17**axis) for axis in range(axes))
            weight = jnp.where(bits == 1, part, 1 - part).prod(-1)
            total = total + weight[:, None] * table[index % np.uint32(rows)]
        return total

    def fn(tables: Any, at: Any) -> Any:
        return jnp.concatenate([one(tables[n], at, n) for n in range(levels)], -1)

    backward = bool(rng.random() < 0.5)
    name = f"{levels}x{rows}x{width}_{points}x{axes}" + "_hashed" * hashed + "_gradient" * backward
    args = (Arg((levels, rows, width)), Arg((points, axes)))
    return name, gradient_of_squares(fn, (0,)) if backward else fn, *args


def _filtered(rng: _Rng) -> _Drawn:
    """Small matrices for each of many series, in turn: products, inverses and sums."""
    batch, side, seen = size(rng, 0, 10), size(rng, 1, 5), int(rng.choice([1, 2, 3, 4, 8]))
    turns, way = int(rng.choice([4, 16])), str(rng.choice(["solve", "cholesky", "products"]))

    def fn(state: Any, spread: Any, reading: Any) -> Any:
        def once(carry: Any, _: Any) -> Any:
            mean, covariance = carry
            covariance = 0.9 * covariance + jnp.eye(side)
            inside = covariance[:, :seen, :seen] + jnp.eye(seen)
            crossed = covariance[:, :, :seen]
            if way == "solve":
                gain = jnp.swapaxes(jnp.linalg.solve(inside, jnp.swapaxes(crossed, 1, 2)), 1, 2)
            elif way == "cholesky":
                lower = jnp.linalg.cholesky(inside)
                gain = lax.linalg.triangular_solve(lower, crossed, lower=True)
            else:
                gain = crossed @ inside * 0.01
            mean = mean + (gain @ (reading - mean[:, :seen])[..., None])[..., 0]
            covariance = covariance - gain @ jnp.swapaxes(crossed, 1, 2)
            return (mean, covariance), mean.sum(-1)

        return lax.scan(once, (state, spread), None, length=turns)

    seen = min(seen, side)
    return (
        f"{way}_{batch}x{side}x{seen}_{turns}",
        fn,
        Arg((batch, side)),
        Arg((batch, side, side), scale=0.01, identity=1.0),
        Arg((batch, seen)),
    )


_KINDS: dict[str, tuple[Callable[[_Rng], _Drawn], int]] = {
    "fields": (_fields, 40),
    "weights": (_weights, 40),
    "chains": (_chains, 40),
    "critics": (_critics, 30),
    "equations": (_equations, 40),
    "short_axes": (_short_axes, 50),
    "bodies": (_bodies, 36),
    "complex": (_complex, 36),
    "routed": (_routed, 30),
    "tables": (_tables, 24),
    "filtered": (_filtered, 24),
}
