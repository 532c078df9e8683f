"""Programs of a calibration at sizes and in types that steps seldom have, and then take long in.

Arrays of gigabytes, float64, stacks of matrices to be decomposed, convolutions in groups or with
wide windows, and products of few terms or of many.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.channel_programs import convolution_gradients
from xlapipe.running.calibration.timed_program import (
    BF16,
    F32,
    TYPES,
    Add,
    Arg,
    TimedProgram,
    joined,
    programs_of,
    sizes,
)

_IMAGES, _SOUNDS = ("NHWC", "HWIO", "NHWC"), ("NWC", "WIO", "NWC")
_DOUBLES: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 1.1,
    "multiply": lambda x: x * 1.1,
    "divide": lambda x: 1.1 / (x + 2),
    "sqrt": lambda x: jnp.sqrt(x * x + 1),
    "rsqrt": lambda x: lax.rsqrt(x * x + 1),
    "exp": lambda x: jnp.exp(x * 0.1),
    "log": lambda x: jnp.log(x * x + 1),
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "power": lambda x: (x * x + 1) ** -0.7,
    "maximum": lambda x: jnp.maximum(x * 1.1, 0.3),
}


def seldom_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    of_arrays = (_stacks, _large, _doubles, _solved_doubles, _rows_of_products, _few_terms)
    return programs_of((*of_arrays, _image_groups, _wide_windows, _sound_groups, _in_loops))


def _stacks(add: Add) -> None:
    """Size and number of matrices."""
    for n, count in sizes("384x4 512x4 512x8 768x8 192x2 256x8"):
        a = Arg((count, n, n), identity=2.0)
        add(f"stacked_qr_{n}_{count}", lambda a: jnp.linalg.qr(a)[0], a)
    for n, count in sizes("16x64 32x16 8x512 64x8 128x1"):
        a = Arg((*(count,) * (count > 1), n, n), jnp.complex64)
        add(f"stacked_svd_c64_{n}_{count}", jnp.linalg.svd, a)
    for n, count in sizes("24x6000 32x2000 8x20000 48x1000 12x30000 16x8192"):
        a, b = Arg((count, n, n), identity=8.0 * n), Arg((count, n))
        add(f"stacked_cholesky_{n}_{count}", jnp.linalg.cholesky, a)
        add(f"stacked_solve_{n}_{count}", lambda a, b: jnp.linalg.solve(a, b[..., None]), a, b)

        def half_solved(a: Any, b: Any) -> Any:
            return lax.linalg.triangular_solve(a, b[..., None], left_side=True, lower=True)

        def multiplied(a: Any) -> Any:
            return jnp.matmul(a, a, precision="highest")

        add(f"stacked_half_solve_{n}_{count}", half_solved, a, b)
        add(f"stacked_product_{n}_{count}", multiplied, a)
    for n, columns in sizes("401x512 785x1000 1001x786 785x501 1537x400 250x786"):
        a, b = Arg((n, n), identity=8.0 * n), Arg((n, columns))

        def solved(a: Any, b: Any) -> Any:
            return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)

        add(f"rough_solve_{n}x{columns}", solved, a, b)


def _large(add: Add) -> None:
    """Arrays of 1 to 3 GB."""
    for shape in sizes("512x1024x768 600x1024x1280 1048576x512 64x8192x1024"):
        x = Arg(shape)
        name = joined(shape)
        column, row = Arg((shape[0], *shape[2:])), Arg(shape[:-1])
        add(f"large_added_{name}", lambda x: x * 2 + 1, x)
        add(f"large_activated_{name}", lambda x: jax.nn.gelu(x).astype(BF16), x)
        add(f"large_sum_of_rows_{name}", lambda x: x.sum(-1), x)
        add(f"large_square_of_rows_{name}", lambda x: jnp.exp(x).sum(-1), x)
        add(f"large_sum_{name}", lambda x: (x * x).sum(), x)
        add(f"large_columns_{name}", lambda x: x.sum(0), x)
        add(f"large_scaled_{name}", lambda x, r: x * r[..., None], x, row)
        add(f"large_turned_{name}", lambda x: x.swapaxes(-1, -2) + 1, x)
        add(f"large_shifted_{name}", lambda x: x - jnp.roll(x, 1, -1), x)
        if len(shape) > 2:
            add(f"large_middle_{name}", lambda x: x.sum(1), x)
            add(f"large_middle_greatest_{name}", lambda x: x.max(1), x)
            add(
                f"large_middle_exponentials_{name}",
                lambda x, c: jnp.exp(x - c[:, None]).sum(1),
                *(x, column),
            )
            add(
                f"large_softmax_{name}",
                lambda x, c: (jnp.exp(x - c[:, None]) / (c[:, None] + 9)).astype(jnp.float16),
                *(x, column),
            )
    for shape in sizes("512x1024x1024 2097152x320"):
        x = Arg(shape, BF16)
        name = joined(shape)
        add(f"large_bf16_added_{name}", lambda x: x * 2 + 1, x)
        add(f"large_bf16_columns_{name}", lambda x: x.astype(F32).sum(0), x)
        add(f"large_bf16_softmax_{name}", lambda x: jax.nn.softmax(x.astype(F32)).astype(BF16), x)


def _doubles(add: Add) -> None:
    """Sixteen times the same in float64."""
    for name, once in _DOUBLES.items():

        def repeated(x: Any, once: Any = once) -> Any:
            with jax.enable_x64(True):
                y = x.astype(jnp.float64)
                for _ in range(16):
                    y = once(y)
                return y.astype(F32)

        add(f"doubles_{name}", repeated, Arg((1 << 22,), scale=0.1))

    def distances(x: Any) -> Any:
        with jax.enable_x64(True):
            y = x.astype(jnp.float64)
            apart = y[:, None] - y
            return (apart * apart).sum(-1).astype(F32)

    add("doubles_distances_4096", distances, Arg((4096, 3)))


def _solved_doubles(add: Add) -> None:
    """Factorisations in float64: size and number of matrices; rows and columns."""

    def in_doubles(solve: Callable[[Any], Any], x: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(lambda y: y.astype(F32), solve(x.astype(jnp.float64)))

    for n, count in sizes("64x1 256x1 1024x1 2304x1 4096x1 32x512 16x4096 128x8"):
        a = Arg((*(count,) * (count > 1), n, n), identity=4.0 * n)
        add(f"cholesky_f64_{n}_{count}", partial(in_doubles, jnp.linalg.cholesky), a)
        add(f"lu_f64_{n}_{count}", partial(in_doubles, lambda a: lax.linalg.lu(a)[0]), a)
        if n <= 1024:
            symmetric = partial(in_doubles, lambda a: jnp.linalg.eigh(a + a.mT))
            add(f"eigh_f64_{n}_{count}", symmetric, a)
            add(f"qr_f64_{n}_{count}", partial(in_doubles, lambda a: jnp.linalg.qr(a)[0]), a)
        if n <= 256:
            add(f"svd_f64_{n}_{count}", partial(in_doubles, jnp.linalg.svd), a)
    for rows, columns in sizes("2304x24 16384x64 4096x512"):
        tall = Arg((rows, columns))
        name = f"qr_f64_{rows}x{columns}"
        add(name, partial(in_doubles, lambda a: jnp.linalg.qr(a)[0]), tall)


def _rows_of_products(add: Add) -> None:
    """Rows, and columns of both factors."""
    for rows, columns, others in sizes(
        "250000x40x40 100000x64x64 500000x24x24 60000x96x96 30000x128x32 400000x16x48 120000x72x8"
    ):
        for dtype, tag in TYPES:
            x, y = Arg((rows, columns), dtype), Arg((rows, others), dtype)
            name = f"rows_of_products_{tag}_{rows}x{columns}x{others}"
            add(name, lambda x, y: x.T @ y, x, y)
            add(f"{name}_weighted", lambda x, y, w: x.T @ (y * w), x, y, Arg((rows, 1), dtype))


def _few_terms(add: Add) -> None:
    """All pairs of points: batch, points, other points, coordinates."""
    for batch, points, others, terms in sizes(
        "1x4096x20000x3 1x16384x4096x3 1x8192x8192x2 1x2048x50000x3 1x1024x4096x3 1x20000x6000x4 "
        "1x6000x6000x8 32x1024x2048x3 128x512x512x3 16x2048x1500x6"
    ):
        for dtype, tag in TYPES:
            shape = (batch,) if batch > 1 else ()
            x, y = (Arg((*shape, n, terms), dtype) for n in (points, others))
            name = f"few_terms_{tag}_{batch}x{points}x{others}x{terms}"

            def products(x: Any, y: Any) -> Any:
                return jnp.einsum("...ik,...jk->...ij", x, y)

            def distances(x: Any, y: Any) -> Any:
                both = (x * x).sum(-1)[..., None] + (y * y).sum(-1)[..., None, :]
                return both - 2 * products(x, y)

            add(name, products, x, y)
            add(f"{name}_distances", distances, x, y)


def _image_groups(add: Add) -> None:
    """Pictures, side, channels, groups, window, step."""
    for n, side, channels, groups, window, step in sizes(
        "64x56x224x4x3x1 64x28x448x8x3x1 64x14x1232x11x3x1 64x28x448x8x3x2 32x56x128x32x3x1 "
        "32x28x256x32x3x1 32x14x1024x32x3x1 64x14x896x16x3x1 32x56x256x4x3x1 16x64x192x12x5x1"
    ):

        def convolved(x: Any, w: Any, step: int = step, groups: int = groups) -> Any:
            return lax.conv_general_dilated(
                *(x, w, (step, step), "SAME"),
                dimension_numbers=_IMAGES,
                feature_group_count=groups,
            )

        for dtype, tag in TYPES:
            name = f"groups_{tag}_{n}x{side}_{channels}in{groups}_{window}by{step}"
            x = Arg((n, side, side, channels), dtype)
            w = Arg((window, window, channels // groups, channels), dtype, scale=0.05)
            convolution_gradients(add, name, convolved, x, w)
    for n, side, channels, window, step in sizes(
        "64x56x72x5x2 64x28x120x5x1 64x14x480x3x1 64x14x672x5x1 64x112x64x3x2 64x7x960x5x1"
    ):
        alone = partial(_channels_alone, step=step)
        name = f"groups_f32_{n}x{side}_{channels}alone_{window}by{step}"
        x, w = Arg((n, side, side, channels)), Arg((window, window, 1, channels), scale=0.05)
        convolution_gradients(add, name, alone, x, w)


def _channels_alone(x: Any, w: Any, step: int = 1) -> Any:
    return lax.conv_general_dilated(
        *(x, w, (step, step), "SAME"),
        dimension_numbers=_IMAGES,
        feature_group_count=x.shape[-1],
    )


def _wide_windows(add: Add) -> None:
    """Each channel alone: pictures, side, channels, window."""
    for n, side, channels, window in sizes(
        "32x32x1024x9 64x16x1536x9 16x64x256x9 32x28x512x13 16x56x128x31 32x14x1024x31 "
        "64x28x384x11 32x32x768x15 64x24x960x5 64x32x576x5"
    ):
        for dtype, tag in TYPES:
            name = f"wide_{tag}_{n}x{side}_{channels}alone_{window}"
            x = Arg((n, side, side, channels), dtype)
            w = Arg((window, window, 1, channels), dtype, scale=0.05)
            convolution_gradients(add, name, _channels_alone, x, w)


def _sound_groups(add: Add) -> None:
    """Positions of speech, as of wav2vec 2.0: sounds, length, channels, groups, window."""
    for n, length, channels, groups, window in sizes(
        "6x249x768x16x128 16x499x768x16x128 8x1000x1024x16x128 4x249x512x16x64 8x300x512x8x31"
    ):

        def convolved(x: Any, w: Any, groups: int = groups) -> Any:
            return lax.conv_general_dilated(
                *(x, w, (1,), "SAME"), dimension_numbers=_SOUNDS, feature_group_count=groups
            )

        for dtype, tag in TYPES:
            name = f"groups_{tag}_{n}x{length}_{channels}in{groups}_{window}"
            x = Arg((n, length, channels), dtype)
            w = Arg((window, channels // groups, channels), dtype, scale=0.05)
            convolution_gradients(add, name, convolved, x, w)
            add(
                f"{name}_biased",
                lambda x, w, b, convolved=convolved: jax.nn.gelu(convolved(x, w) + b),
                *(x, w, Arg((channels,), dtype)),
            )


def _in_loops(add: Add) -> None:
    """Gradients of recurrences by channel, of which each step adds up over its batch."""
    for batch, channels, steps in sizes("8x768x128 16x768x128 32x512x128 16x2048x64"):

        def recurrence(w: Any, u: Any, xs: Any) -> Any:
            def step(state: Any, x: Any) -> Any:
                k, v = x
                a, b = state
                e = jnp.exp(k + u)
                y = (a + e * v) / (b + e)
                decay = jnp.exp(-jnp.exp(w))
                return (decay * a + jnp.exp(k) * v, decay * b + jnp.exp(k)), y

            zero = jnp.zeros_like(xs[0][0])
            return jnp.square(lax.scan(step, (zero, zero), xs)[1]).sum()

        weights = Arg((channels,), scale=0.1)
        xs = tuple(Arg((steps, batch, channels), scale=0.1) for _ in range(2))
        name = f"recurrence_gradient_{batch}x{channels}x{steps}"
        add(name, jax.grad(recurrence, (0, 1, 2)), weights, weights, xs)
