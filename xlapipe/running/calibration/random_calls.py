"""Random programs of a calibration with one operation each: calls of libraries, sums and joins.

Each is drawn by a seed from what models have: few and many channels, odd sizes, several axes. The
formula of a kind is wrong most where no timed kernel is near.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.running.calibration.timed_program import BF16, F32, Add, Arg, TimedProgram, programs_of

_F16 = jnp.float16
_TAGS = {F32: "f32", BF16: "bf16", _F16: "f16"}
# Elements of the largest array, and operations of a product, as powers of two.
_MOST, _MOST_OPERATIONS = 24.0, 38.0
_SPACE = "DHW"
_Rng = np.random.Generator


def random_calls() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = []
    for kind, (draw, count) in _KINDS.items():
        parts += [drawn("call", kind, draw, seed) for seed in range(count)]
    return programs_of(parts)


def drawn(first: str, kind: str, draw: Callable[..., Any], seed: int) -> Callable[[Add], None]:
    """Adds the program that a seed makes, FIRST_KIND_SEED_WHAT."""

    def part(add: Add) -> None:
        rng = np.random.default_rng([seed, *map(ord, kind)])
        what, fn, *args = draw(rng)
        add(f"{first}_{kind}_{seed:03}_{what}", fn, *args)

    return part


def size(rng: _Rng, least: float, most: float) -> int:
    """Between two powers of two, half of the time a multiple of the largest power that fits."""
    number = round(2 ** rng.uniform(least, most))
    even = 1 << max(0, number.bit_length() - 3)
    return max(1, number // even * even if rng.random() < 0.5 else number)


def _type(rng: _Rng, *weights: float) -> Any:
    return list(_TAGS)[rng.choice(len(weights), p=weights)]


def gradient_of_squares(fn: Callable[..., Any], numbers: tuple[int, ...]) -> Callable[..., Any]:
    """The gradient of the sum of squares, with respect to arguments of these numbers."""
    return jax.grad(lambda *args: (fn(*args).astype(F32) ** 2).sum(), numbers)


def _convolution(rng: _Rng) -> tuple[Any, ...]:
    """Over one to three axes; in groups, strided, dilated or transposed; with bias and gradient."""
    axes, dtype = int(rng.choice([1, 2, 2, 2, 3])), _type(rng, 0.5, 0.5)
    side = size(rng, *{1: (6, 14), 2: (3, 8), 3: (3, 6)}[axes])
    inputs, outputs = (
        int(rng.choice([1, 3, 4])) if rng.random() < 0.15 else size(rng, 2.5, 9.5) for _ in range(2)
    )
    way = rng.choice(["plain", "plain", "plain", "depthwise", "groups", "dilated", "transposed"])
    groups = 1
    if way == "depthwise":
        groups = inputs
        outputs = inputs * int(rng.choice([1, 1, 1, 2]))
    elif way == "groups":
        groups = int(rng.choice([2, 4, 8, 32]))
        inputs, outputs = (math.ceil(n / groups) * groups for n in (inputs, outputs))
    window = int(rng.choice([1, 3, 3, 3, 5, 7] + [9, 15, 31] * (axes == 1)))
    stride = int(rng.choice([1, 1, 1, 2, 2, 4]))
    one = axes * math.log2(side) + math.log2(max(inputs, outputs))
    operations = one + math.log2(window**axes * min(inputs, outputs) / groups)
    most = min(rng.uniform(14, _MOST) - one, 36 - operations)
    batch = size(rng, 0, max(0.0, min(8.0, most)))
    letters = _SPACE[-axes:]
    layout = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    dilation = (2,) * axes if way == "dilated" else None
    strides = (stride,) * axes
    biased = rng.random() < 0.3

    def convolved(x: Any, w: Any, b: Any) -> Any:
        if way == "transposed":
            y = lax.conv_transpose(x, w, strides, "SAME", dimension_numbers=layout)
        else:
            y = lax.conv_general_dilated(
                x, w, strides, "SAME", None, dilation, layout, feature_group_count=groups
            )
        return jax.nn.relu(y + b) if biased else y

    fn: Callable[..., Any] = convolved
    backward = rng.random() < 0.5
    if backward:
        fn = gradient_of_squares(convolved, (0, 1) if rng.random() < 0.6 else (1,))
    what = f"{_TAGS[dtype]}_{batch}x{side}p{axes}x{inputs}_{window}_{stride}_{groups}_{outputs}"
    return (
        what + f"_{way}" + "_gradient" * backward,
        fn,
        Arg((batch, *(side,) * axes, inputs), dtype),
        Arg((*(window,) * axes, inputs // groups, outputs), dtype, scale=0.05),
        Arg((outputs,), dtype),
    )


def _product(rng: _Rng) -> tuple[Any, ...]:
    """Of one or many matrices, in any layout, with what models do to the result."""
    dtype = _type(rng, 0.4, 0.5, 0.1)
    batch = 1 if rng.random() < 0.5 else size(rng, 1, 11)
    m, k, n = (size(rng, 2, 13) for _ in range(3))
    if rng.random() < 0.2:
        m = int(rng.integers(1, 9))
    while batch * max(m * k, k * n, m * n) > 2**_MOST or batch * m * k * n > 2**_MOST_OPERATIONS:
        batch, m, k, n = (max(1, (3 * size) // 4) for size in (batch, m, k, n))
    left, right = str(rng.choice(["bmk", "bkm"])), str(rng.choice(["bkn", "bnk"]))
    if batch > 1 and rng.random() < 0.3:
        left, right = "mbk", str(rng.choice(["bkn", "kbn"]))
    dims = {"b": batch, "m": m, "k": k, "n": n}
    after = rng.choice(["", "", "gelu", "bias", "softmax", "residual"])
    exact = dtype == F32 and rng.random() < 0.1

    def product(a: Any, b: Any, c: Any) -> Any:
        y = jnp.einsum(f"{left},{right}->bmn", a, b, precision="highest" if exact else None)
        if after == "gelu":
            return jax.nn.gelu(y + c[0, 0])
        if after == "bias":
            return y * 0.5 + c[0, 0]
        if after == "softmax":
            return jax.nn.softmax(y.astype(F32) * 0.1, -1).astype(dtype)
        return y + c if after == "residual" else y

    return (
        f"{_TAGS[dtype]}_{left}_{right}_{batch}x{m}x{k}x{n}" + f"_{after}" * bool(after),
        product,
        Arg(tuple(dims[c] for c in left), dtype),
        Arg(tuple(dims[c] for c in right), dtype, scale=k**-0.5),
        Arg((batch, m, n) if after == "residual" else (1, 1, n), dtype),
    )


def _largest(rng: _Rng) -> tuple[Any, ...]:
    rows = 1 if rng.random() < 0.2 else size(rng, 0, 12)
    columns = size(rng, 5, min(20, 25 - math.log2(rows)))
    count = min(columns, int(rng.choice([1, 2, 3, 4, 5, 8, 10, 16, 20, 40, 50, 64, 100, 128])))
    dtype = F32 if rng.random() < 0.8 else BF16
    return (
        f"{_TAGS[dtype]}_{rows}x{columns}_{count}",
        lambda x: lax.top_k(x, count),
        Arg((rows, columns), dtype),
    )


def _sorted(rng: _Rng) -> tuple[Any, ...]:
    rows = 1 if rng.random() < 0.4 else size(rng, 1, 10)
    columns = size(rng, 4, min(20, 22 - math.log2(rows)))
    way = str(rng.choice(["sort", "argsort", "pairs", "first_axis", "descending", "integers"]))
    x, indices = Arg((rows, columns)), Arg((rows, columns), jnp.int32, below=columns)
    fns: dict[str, Callable[..., Any]] = {
        "sort": lambda x: jnp.sort(x, -1),
        "argsort": lambda x: jnp.argsort(x, -1),
        "pairs": lambda x: lax.sort((x, x * 2, x + 1), dimension=1, num_keys=1),
        "first_axis": lambda x: jnp.sort(x, 0),
        "descending": lambda x: -jnp.sort(-x, -1),
        "integers": lambda i: jnp.sort(i, -1),
    }
    return f"{way}_{rows}x{columns}", fns[way], indices if way == "integers" else x


def _scattered(rng: _Rng) -> tuple[Any, ...]:
    """Rows or elements are added, set or compared at indices, most of which differ."""
    width = 1 if rng.random() < 0.3 else size(rng, 1, 10)
    rows = size(rng, 6, _MOST - math.log2(width))
    count = size(rng, 4, min(20, _MOST - math.log2(width), math.log2(rows) + 2))
    dtype = F32 if rng.random() < 0.7 else BF16
    way = str(rng.choice(["add", "add", "set", "max", "segment_sum", "gather"]))
    table, values = Arg((rows, width), dtype), Arg((count, width), dtype)
    index = Arg((count,), jnp.int32, below=rows)

    def fn(table: Any, index: Any, values: Any) -> Any:
        if way == "segment_sum":
            return jax.ops.segment_sum(values, index, rows)
        if way == "gather":
            return table[index] * values
        return getattr(table.at[index], way)(values)

    return f"{way}_{_TAGS[dtype]}_{rows}x{width}_{count}", fn, table, index, values


def _decomposed(rng: _Rng) -> tuple[Any, ...]:
    """Factorisations, inverses and solved systems of one or several matrices."""
    batch = 1 if rng.random() < 0.5 else size(rng, 1, 9)
    n = size(rng, 2, min(10.5, (20 - math.log2(batch)) / 2))
    way = str(rng.choice(["cholesky", "qr", "eigh", "lu", "inv", "solve", "cho_solve", "triangle"]))
    if way == "eigh":
        n = min(n, 400)
    columns = 1 if rng.random() < 0.5 else size(rng, 1, 8)
    scale = 0.3 * n**-0.5
    square = Arg((batch, n, n), scale=scale, identity=4.0)
    tall = Arg((batch, n + size(rng, 0, 9), n)) if way == "qr" else square

    def symmetric(a: Any) -> Any:
        return a + a.mT

    fns: dict[str, Callable[..., Any]] = {
        "cholesky": lambda a, _: jnp.linalg.cholesky(symmetric(a)),
        "qr": lambda a, _: jnp.linalg.qr(a),
        "eigh": lambda a, _: jnp.linalg.eigh(symmetric(a)),
        "lu": lambda a, _: jax.scipy.linalg.lu_factor(a),
        "inv": lambda a, _: jnp.linalg.inv(a),
        "solve": jnp.linalg.solve,
        "cho_solve": lambda a, b: jax.scipy.linalg.cho_solve((jnp.tril(a), True), b),
        "triangle": lambda a, b: lax.linalg.triangular_solve(
            a, b, left_side=True, lower=bool(n % 2), transpose_a=n % 3 == 0
        ),
    }
    return f"{way}_{batch}x{n}_{columns}", fns[way], tall, Arg((batch, n, columns))


def _transformed(rng: _Rng) -> tuple[Any, ...]:
    """Fourier transforms over one or two axes, alone or as a filter."""
    axes = 1 if rng.random() < 0.6 else 2
    batch = size(rng, 0, 10)
    side = size(rng, 4, min(18.0, (22 - math.log2(batch)) / axes))
    way = str(rng.choice(["real", "complex", "filter", "filter"]))
    over = tuple(range(1, axes + 1))

    def fn(x: Any, w: Any) -> Any:
        if way == "complex":
            return jnp.fft.fftn(x * (1 + 0.5j), axes=over)
        spectrum = jnp.fft.rfftn(x, axes=over)
        return spectrum if way == "real" else jnp.fft.irfftn(spectrum * w[0], (side,) * axes, over)

    shape = (batch, *(side,) * axes)
    return f"{way}_{batch}x{side}p{axes}", fn, Arg(shape), Arg((1, 1))


def _shape(rng: _Rng, most: float = _MOST) -> tuple[int, ...]:
    """Two to five axes of any sizes."""
    axes = int(rng.choice([2, 3, 3, 4, 4, 5]))
    left = rng.uniform(8, most)
    cuts = np.diff(np.sort(np.concatenate([[0.0, left], rng.uniform(0, left, axes - 1)])))
    return tuple(max(2, size(rng, cut, cut + 0.01)) for cut in cuts)


def _summed(rng: _Rng) -> tuple[Any, ...]:
    """Along some axes: sums, largest, deviations, logarithms of sums, places of the largest."""
    shape, dtype = _shape(rng), _type(rng, 0.6, 0.4)
    count = int(rng.integers(1, min(3, len(shape) - 1), endpoint=True))
    over = tuple(sorted(map(int, rng.choice(len(shape), count, replace=False))))
    names = ["sum", "max", "moments", "logsumexp", "argmax", "distance", "weighted", "mean_of_two"]
    way = str(rng.choice(names))

    def fn(x: Any, y: Any) -> Any:
        wide, other = x.astype(F32), y.astype(F32)
        results: dict[str, Callable[[], Any]] = {
            "sum": lambda: wide.sum(over),
            "max": lambda: wide.max(over),
            "moments": lambda: (wide.mean(over), (wide * wide).mean(over)),
            "logsumexp": lambda: jax.nn.logsumexp(wide, over),
            "argmax": lambda: jnp.argmax(wide, over[0]),
            "distance": lambda: ((wide - other) ** 2).sum(over),
            "weighted": lambda: (wide * jnp.exp(-other * other)).sum(over),
            "mean_of_two": lambda: (wide.mean(over), (wide * other).mean(over)),
        }
        return results[way]()

    what = f"{way}_{_TAGS[dtype]}_{'x'.join(map(str, shape))}_over_{''.join(map(str, over))}"
    return what, fn, Arg(shape, dtype), Arg(shape, dtype)


def _joins(rng: _Rng) -> tuple[Any, ...]:
    """Arrays joined, repeated, padded, rolled, taken apart and turned, as between layers."""
    shape, dtype = _shape(rng, 22), _type(rng, 0.5, 0.5)
    axis = int(rng.integers(len(shape)))
    names = ["concatenate", "upsample", "pad", "roll", "stack", "patches", "heads", "flip", "outer"]
    way = str(rng.choice(names))

    def fn(x: Any, y: Any) -> Any:
        results: dict[str, Callable[[], Any]] = {
            "concatenate": lambda: jnp.concatenate([x * 2, jnp.tanh(y), x + y], axis),
            "upsample": lambda: jnp.concatenate(
                [jnp.repeat(x, 2, axis), jnp.repeat(jax.nn.relu(y), 2, axis)], -1
            ),
            "pad": lambda: jnp.pad(x * y, [(1, 2)] * x.ndim),
            "roll": lambda: x + jnp.roll(y, 1, axis) - jnp.roll(y, -1, axis),
            "stack": lambda: jnp.stack([x, y, x * y], axis),
            "patches": lambda: jnp.moveaxis(
                x[..., : x.shape[-1] // 2 * 2].reshape(*x.shape[:-1], -1, 2) * 3, -1, 0
            ),
            "heads": lambda: jnp.swapaxes(x + y, axis, (axis + 1) % x.ndim) * 2,
            "flip": lambda: jnp.flip(x, axis) * y,
            "outer": lambda: (x - y).sum(axis, keepdims=True) * x + y,
        }
        return results[way]()

    what = f"{way}_{_TAGS[dtype]}_{'x'.join(map(str, shape))}_{axis}"
    return what, fn, Arg(shape, dtype), Arg(shape, dtype)


def _sampled(rng: _Rng) -> tuple[Any, ...]:
    """Images resized, warped by a flow, or read in windows."""
    batch, side, channels = size(rng, 0, 4), size(rng, 4, 8.5), int(rng.choice([1, 3, 8, 32, 64]))
    while batch * side * side * channels > 1 << 23:
        side = side * 3 // 4
    way = str(rng.choice(["resize", "shrink", "warp", "nearest", "windows"]))

    def warped(x: Any, flow: Any) -> Any:
        rows, columns = (jnp.arange(side, dtype=F32) + flow[i] for i in range(2))
        at = list(jnp.meshgrid(rows, columns, indexing="ij"))

        def one(plane: Any) -> Any:
            return jax.scipy.ndimage.map_coordinates(plane, at, 1)

        return jax.vmap(jax.vmap(one, -1, -1))(x)

    fns: dict[str, Callable[..., Any]] = {
        "resize": lambda x, _: jax.image.resize(
            x, (batch, 2 * side, 2 * side, channels), "bilinear"
        ),
        "shrink": lambda x, _: jax.image.resize(
            x, (batch, side * 2 // 3, side * 2 // 3, channels), "linear", antialias=False
        ),
        "warp": warped,
        "nearest": lambda x, flow: x[:, (jnp.arange(2 * side) // 2 + 1) % side] * flow[0, 0],
        "windows": lambda x, _: lax.conv_general_dilated_patches(
            x, (3, 3), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
    }
    return (
        f"{way}_{batch}x{side}x{channels}",
        fns[way],
        Arg((batch, side, side, channels)),
        Arg((2, side), scale=2.0),
    )


def _triangle(rng: _Rng) -> tuple[Any, ...]:
    """Equations with a triangle and several columns, also for many small triangles at once."""
    batch = 1 if rng.random() < 0.6 else size(rng, 1, 9)
    rows = size(rng, 3, min(11.5, 12 - math.log2(batch) / 2))
    columns = 1 if rng.random() < 0.2 else size(rng, 1, 9)
    transposed, lower = bool(rng.random() < 0.5), bool(rng.random() < 0.7)

    def fn(triangle: Any, x: Any) -> Any:
        return lax.linalg.triangular_solve(
            triangle, x, left_side=True, lower=lower, transpose_a=transposed
        )

    return (
        f"{batch}x{rows}x{columns}_{'transposed' if transposed else 'plain'}",
        fn,
        Arg((batch, rows, rows), identity=float(rows)),
        Arg((batch, rows, columns)),
    )


def _eight(rng: _Rng) -> tuple[Any, ...]:
    """Products of numbers of 8 bits, with a scale for each column, as of quantised layers."""
    rows, terms, columns = size(rng, 0, 13), size(rng, 6, 12.5), size(rng, 6, 13)
    if rows * columns > 1 << 24:
        rows = (1 << 24) // columns
    integers = bool(rng.random() < 0.7)
    dtype, sums = (jnp.int8, jnp.int32) if integers else (jnp.float8_e4m3fn, F32)

    def fn(x: Any, weights: Any, scales: Any) -> Any:
        y = lax.dot_general(x, weights, (((1,), (0,)), ((), ())), preferred_element_type=sums)
        return (y.astype(F32) * scales).astype(BF16)

    return (
        f"{'s8' if integers else 'f8'}_{rows}x{terms}x{columns}",
        fn,
        Arg((rows, terms), dtype, below=127),
        Arg((terms, columns), dtype, below=127),
        Arg((columns,)),
    )


def _attended(rng: _Rng) -> tuple[Any, ...]:
    """Attention to odd numbers of tokens, as of patches of pictures and of captions."""
    heads, width, dtype = int(rng.integers(2, 17)), 64, _type(rng, 0.3, 0.7)
    tokens = size(rng, 5, 9.3) | 1
    batch = max(1, min(size(rng, 2, 7), round(2**23.5 / (heads * tokens**2))))
    wide, way = bool(rng.random() < 0.5), str(rng.choice(["plain", "causal", "gradient"]))

    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.125
        if way == "causal":
            seen = jnp.tril(jnp.ones((tokens, tokens), bool))
            scores = jnp.where(seen, scores, jnp.asarray(-1e9, scores.dtype))
        weights = jax.nn.softmax(scores.astype(F32) if wide else scores, axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)

    arg = Arg((batch, tokens, heads, width), dtype)
    fn_or_gradient = gradient_of_squares(fn, (0, 1, 2)) if way == "gradient" else fn
    what = f"{way}_{_TAGS[dtype]}{'_wide' if wide else ''}_{batch}x{tokens}x{heads}"
    return what, fn_or_gradient, arg, arg, arg


_KINDS: dict[str, tuple[Callable[[_Rng], tuple[Any, ...]], int]] = {
    "convolution": (_convolution, 200),
    "product": (_product, 140),
    "largest": (_largest, 70),
    "sorted": (_sorted, 40),
    "scattered": (_scattered, 80),
    "decomposed": (_decomposed, 70),
    "transformed": (_transformed, 40),
    "summed": (_summed, 140),
    "joins": (_joins, 110),
    "sampled": (_sampled, 40),
    "triangle": (_triangle, 50),
    "eight": (_eight, 60),
    "attended": (_attended, 90),
}
