"""Programs of a calibration that call libraries in sizes and types that the other modules lack.

Also sums that threads compute on the way to a scatter or a transpose, and critics that are
trained together.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.channel_programs import convolution_gradients
from xlapipe.running.calibration.timed_program import (
    BF16,
    F32,
    Add,
    Arg,
    TimedProgram,
    programs_of,
    sizes,
)

_IMAGES = ("NHWC", "HWIO", "NHWC")
_SOUNDS = ("NWC", "WIO", "NWC")


def library_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    return programs_of((_images, _sounds, _solvers, _turned, _critics, _inner_sums, _contracted))


def _with_gradients(add: Add, name: str, convolved: Any, x: Arg, w: Arg) -> None:
    """Forward, with a bias and a ReLU, and the gradients of inputs and of weights, each alone."""
    bias = Arg(w.shape[-1:], w.dtype)
    convolution_gradients(add, name, convolved, x, w)
    add(f"{name}_biased", lambda x, w, b: jax.nn.relu(convolved(x, w) + b), x, w, bias)


def _images(add: Add) -> None:
    """Pictures, size, channels of the inputs and results, window, step."""
    for n, size, ins, outs, window, step in sizes(
        "32x32x128x128x3x1 16x64x128x128x3x1 32x32x256x256x3x1 8x64x256x256x3x1 64x14x512x512x3x1 "
        "64x28x128x256x3x2 16x128x64x64x3x1 32x56x64x64x3x1 16x32x512x256x3x1 64x16x256x512x1x1 "
        "8x128x128x64x5x1 16x64x64x192x3x1 4x128x192x192x3x1 16x48x384x384x3x1"
    ):

        def convolved(x: Any, w: Any, step: int = step) -> Any:
            return lax.conv_general_dilated(x, w, (step, step), "SAME", dimension_numbers=_IMAGES)

        name = f"larger_convolution_f32_{n}x{size}_{ins}to{outs}_{window}by{step}"
        x, w = Arg((n, size, size, ins)), Arg((window, window, ins, outs), scale=0.05)
        _with_gradients(add, name, convolved, x, w)


def _sounds(add: Add) -> None:
    """Sounds, length, channels, window, and the distance of its elements."""
    large = sizes("32x1024x256x5x1 64x512x512x3x1 16x2048x128x3x4")
    small = sizes("128x300x64x3x2 64x300x128x3x3 128x200x128x3x4 32x400x64x5x2 64x750x512x5x1")
    for dtype, those in ((F32, large), (BF16, small)):
        for n, length, channels, window, apart in those:

            def convolved(x: Any, w: Any, apart: int = apart) -> Any:
                return lax.conv_general_dilated(
                    x, w, (1,), "SAME", rhs_dilation=(apart,), dimension_numbers=_SOUNDS
                )

            name = f"dilated_convolution_bf16_{n}x{length}_{channels}_{window}at{apart}"
            if dtype == F32:
                channels_of_both = f"{channels}to{channels}"
                name = f"larger_convolution_f32_{n}x{length}_{channels_of_both}_{window}at{apart}"
            x = Arg((n, length, channels), dtype)
            w = Arg((window, channels, channels), dtype, scale=0.05)
            _with_gradients(add, name, convolved, x, w)


def _solvers(add: Add) -> None:
    """Factorisations of complex matrices and of others, and systems with three diagonals."""
    for n, count, columns in sizes(
        "64x4096x1 256x512x1 512x512x1 1024x64x1 4096x1x1 100000x1x1 256x1x256 1024x1x1024 "
        "1536x1x1536 512x1x64 128x256x8 2048x1x16"
    ):

        def solved(low: Any, middle: Any, high: Any, b: Any) -> Any:
            low, high = low.at[..., 0].set(0), high.at[..., -1].set(0)
            return lax.linalg.tridiagonal_solve(low, middle + 4, high, b)

        shape = (count,) * (count > 1)
        diagonals = [Arg((*shape, n), scale=0.1) for _ in range(3)]
        add(f"tridiagonal_{n}_{count}x{columns}", solved, *diagonals, Arg((*shape, n, columns)))
    for n, count in sizes("16x4096 32x512 64x64 128x16 256x1 512x1 1024x1"):
        a = Arg((*(count,) * (count > 1), n, n), jnp.complex64, identity=8.0 * n)
        add(f"cholesky_c64_{n}_{count}", jnp.linalg.cholesky, a)
        add(f"lu_c64_{n}_{count}", lambda a: lax.linalg.lu(a)[0], a)
        add(f"qr_c64_{n}_{count}", lambda a: jnp.linalg.qr(a)[0], a)
        if n <= 256:
            add(f"eigh_c64_{n}_{count}", lambda a: jnp.linalg.eigh(a + a.conj().mT), a)
    for n, count in sizes("8x2048 16x512 32x256 64x32 128x8 384x1"):
        a = Arg((*(count,) * (count > 1), n, n))
        add(f"eigh_f32_{n}_{count}", lambda a: jnp.linalg.eigh(a + a.mT), a)
        add(f"svd_f32_{n}_{count}", jnp.linalg.svd, a)
    for n in (32, 128, 384):
        add(f"eig_f32_{n}", jnp.linalg.eigvals, Arg((n, n)))
    for rows, columns in sizes("24576x96 8192x32 100000x16 4096x512 2048x1024"):
        add(f"qr_f32_{rows}x{columns}", lambda a: jnp.linalg.qr(a)[0], Arg((rows, columns)))


def _turned(add: Add) -> None:
    for rows, columns in sizes("4096x16384 4096x4096 16384x4096 2048x2048 8192x1024"):
        for dtype, tag in ((jnp.int8, "s8"), (BF16, "bf16")):
            x = Arg((rows, columns), dtype, below=100)
            name = f"{rows}x{columns}_{tag}"
            add(f"turned_{name}", lambda x: x.T + 1, x)
            add(f"turned_rows_{name}", lambda x: jnp.concatenate([x.T, x.T * 2], 1), x)


def _critics(add: Add) -> None:
    """Several critics with normalised layers, of one batch and of three: critics, rows, width."""
    for count, rows, width in sizes("5x2048x256 10x1024x128 2x5120x512 5x512x256"):
        x, ws = Arg((rows, width)), [Arg((count, width, width), scale=0.05) for _ in range(3)]
        scales, shifts = ([Arg((count, width)) for _ in range(3)] for _ in range(2))

        def loss(ws: Any, scales: Any, shifts: Any, x: Any) -> Any:
            def one(ws: Any, scales: Any, shifts: Any) -> Any:
                h = x
                for w, scale, shift in zip(ws, scales, shifts, strict=True):
                    h = h @ w
                    h = h - h.mean(-1, keepdims=True)
                    h = h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6)
                    h = jax.nn.relu(h * scale + shift)
                return h.sum(-1)

            return jnp.square(jax.vmap(one)(ws, scales, shifts)).mean()

        def of_three(ws: Any, scales: Any, shifts: Any, x: Any, loss: Any = loss) -> Any:
            losses = [loss(ws, scales, shifts, each) for each in (x, x * 2 + 1, jnp.tanh(x))]
            return losses[0] + losses[1] - losses[2]

        name = f"critics_{count}x{rows}x{width}"
        add(name, jax.grad(loss, (0, 1, 2)), ws, scales, shifts, x)
        add(f"{name}_three", jax.grad(of_three, (0, 1, 2)), ws, scales, shifts, x)


def _inner_sums(add: Add) -> None:
    """Sums on the way to a scatter: rows, terms, width, rows of the table; and of gathered rows."""
    for n, terms, width, rows in sizes(
        "24000x32x64x200000 50000x16x32x50000 10000x64x128x100000 100000x8x16x20000"
    ):
        index = Arg((n,), jnp.int32, below=rows)
        for dtype, tag in ((F32, "f32"), (jnp.float16, "f16")):
            x, table = Arg((n, terms, width), dtype), Arg((rows, width), dtype)

            def set_greatest(x: Any, t: Any, i: Any) -> Any:
                return t.at[i].set(jnp.maximum(x * 2 + 1, 0).max(1))

            add(f"greatest_set_{n}x{terms}x{width}_{tag}", set_greatest, x, table, index)
        x, table = Arg((n, terms, width)), Arg((rows, width))
        name = f"greatest_added_{n}x{terms}x{width}"
        add(name, lambda x, t, i: t.at[i].add((x * x).sum(1)), x, table, index)
    for edges, nodes, width, kinds in sizes(
        "270000x14541x128x24 100000x50000x64x1000 300000x20000x32x20000 50000x10000x256x10000"
    ):
        a, b = Arg((nodes, width)), Arg((nodes, 4, width))
        ends = [Arg((edges,), jnp.int32, below=below) for below in (nodes, nodes, kinds)]

        def scored(t: Any, a: Any, b: Any, i: Any, j: Any, k: Any) -> Any:
            return t.at[k].add((a[i][:, None] * b[j]).sum(-1))

        def scored_alone(t: Any, a: Any, i: Any, j: Any, k: Any) -> Any:
            return t.at[k].add((a[i] * a[j]).sum(-1))

        name = f"{edges}_{nodes}x{width}_{kinds}"
        add(f"scored_{name}", scored, Arg((kinds, 4)), a, b, *ends)
        add(f"scored_alone_{name}", scored_alone, Arg((kinds,)), a, *ends)


def _contracted(add: Add) -> None:
    """Short sums of products before a transpose: nodes, channels, terms."""
    for n, channels, terms in sizes("768x48x9 2048x32x9 512x128x5 4096x16x4"):
        x, y = Arg((n, channels, terms)), Arg((n, channels, terms, terms))

        def once(x: Any, y: Any) -> Any:
            return (x[..., None] * y).sum(2).transpose(2, 1, 0) * 2

        def twice(x: Any, y: Any) -> Any:
            other = (x[:, :, None] * y).sum(3).transpose(2, 1, 0)
            return (x[..., None] * y).sum(2).transpose(2, 1, 0) + other

        add(f"contracted_{n}x{channels}x{terms}", twice, x, y)
        add(f"contracted_once_{n}x{channels}x{terms}", once, x, y)
