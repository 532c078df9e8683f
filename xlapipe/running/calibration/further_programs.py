"""Further programs of a calibration: Pallas kernels that read and write, strided reads, selections,
windows of images, and products, convolutions and solves of other shapes.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from xlapipe.running.calibration.pallas_programs import call_of
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


def further_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = (
        *(_pallas_blocks, _pallas_rows, _strided, _encodings, _selections, _windows),
        *(_blocks_of_images, _further_products, _further_convolutions),
        *(_further_solves, _gathered_sums),
    )
    return programs_of(parts)


def _pallas_blocks(add: Add) -> None:
    """Element-wise kernels of one block per program."""

    def halved(x: Any, y: Any, z: Any) -> None:
        z[...] = (jnp.maximum(x[...].astype(F32), 0) * 0.5 + y[...].astype(F32)).astype(z.dtype)

    def squashed(x: Any, y: Any, z: Any) -> None:
        z[...] = (jnp.exp(x[...].astype(F32)) * y[...].astype(F32)).astype(z.dtype)

    shapes = ((128, 256), (1024, 1024), (8192, 1024), (16384, 4096))
    blocks = ((1, 256, 2), (8, 128, 4), (32, 128, 4), (64, 64, 8))
    for shape, (rows, columns, warps), (dtype, tag) in itertools.product(shapes, blocks, TYPES):
        kernel = halved if (rows + shape[0] // 128) % 3 else squashed
        spec = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
        grid = (shape[0] // rows, shape[1] // columns)
        result = jax.ShapeDtypeStruct(shape, dtype)
        add(
            f"pallas_block_{tag}_{joined(shape)}_{rows}x{columns}",
            call_of(kernel, grid, [spec, spec], spec, result, warps=warps),
            Arg(shape, dtype),
            Arg(shape, dtype),
        )


def _pallas_rows(add: Add) -> None:
    """Norms of rows, and products with a vector."""

    def normed(x: Any, y: Any) -> None:
        wide = x[...].astype(F32)
        y[...] = (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(y.dtype)

    for (rows, columns), (dtype, tag) in itertools.product(
        sizes("64x512 512x4096 4096x1024 16384x256 32768x2048"), TYPES
    ):
        for own in (1, 8):
            spec = pl.BlockSpec((own, columns), lambda i: (i, 0))
            result = jax.ShapeDtypeStruct((rows, columns), dtype)
            add(
                f"pallas_norm_{tag}_{rows}x{columns}_{own}",
                call_of(normed, (rows // own,), [spec], spec, result),
                Arg((rows, columns), dtype),
            )
    for (rows, columns), own in itertools.product(
        sizes("256x4096 1024x1024 4096x4096 32768x1024"), (2, 16)
    ):

        def product(w: Any, x: Any, y: Any, columns: int = columns, own: int = own) -> None:
            def part(step: Any, total: Any) -> Any:
                at = pl.ds(step * 512, 512)
                return total + w[:, at].astype(F32) * x[at].astype(F32)[None]

            zero = jnp.zeros((own, 512), F32)
            y[...] = lax.fori_loop(0, columns // 512, part, zero).sum(1)

        add(
            f"pallas_matvec_{rows}x{columns}_{own}",
            call_of(
                product,
                (rows // own,),
                [
                    pl.BlockSpec((own, columns), lambda i: (i, 0)),
                    pl.BlockSpec((columns,), lambda i: (0,)),
                ],
                pl.BlockSpec((own,), lambda i: (i,)),
                jax.ShapeDtypeStruct((rows,), F32),
                warps=2,
            ),
            Arg((rows, columns), BF16),
            Arg((columns,), BF16),
        )


def _strided(add: Add) -> None:
    """Reads of every second element, and results that are put together of them."""

    def halves(x: Any, levels: int) -> Any:
        parts = []
        for _ in range(levels):
            even, odd = x[:, ::2], x[:, 1::2]
            parts.append((even - odd) * 0.7)
            x = (even + odd) * 0.7
        return jnp.concatenate([x, *parts[::-1]], 1)

    for (rows, columns), levels in itertools.product(
        sizes("32x8192 256x4096 128x65536 2048x2048"), (1, 2, 3, 5)
    ):
        x = Arg((rows, columns))
        add(f"halves_{rows}x{columns}_{levels}", lambda x, n=levels: halves(x, n), x)
        add(
            f"every_other_{rows}x{columns}_{levels}",
            lambda x, n=levels: jnp.tanh(x[:, :: 2**n]) + x[:, 1 :: 2**n],
            x,
        )
    for rows, columns in sizes("64x4096 1024x4096"):
        x = Arg((rows, columns))
        add(
            f"interleaved_{rows}x{columns}",
            lambda x, y: jnp.stack([x + y, x - y], -1).reshape(x.shape[0], -1),
            x,
            x,
        )
        add(f"pooled_{rows}x{columns}", lambda x: x.reshape(x.shape[0], -1, 2).sum(-1) * 0.5, x)


def _encodings(add: Add) -> None:
    """Sines and cosines of several frequencies, one after another."""
    for (rays, points, width), count in itertools.product(
        sizes("512x32x3 4096x64x2 1024x128x4"), (2, 4, 8)
    ):

        def encoded(x: Any, t: Any, count: int = count) -> Any:
            at = x[:, None] * t[None, :, None]
            waves = [f(at * 2.0**n) for n in range(count) for f in (jnp.sin, jnp.cos)]
            return jnp.concatenate(waves, -1)

        add(f"waves_{rays}x{points}x{width}_{count}", encoded, Arg((rays, width)), Arg((points,)))


def _selections(add: Add) -> None:
    for (rows, columns), count in itertools.product(
        sizes("1x32768 4x65536 16x4096 64x131072 512x8192 4096x1024 8192x128"), (1, 4, 16, 100)
    ):
        x = Arg((rows, columns))
        add(f"largest_{rows}x{columns}_{count}", lambda x, n=count: lax.top_k(x, n), x)


def _windows(add: Add) -> None:
    """Images that are read at computed places, and neighbourhoods of each place."""
    for (batch, size), order in itertools.product(sizes("1x256 4x512 1x2048"), (0, 1)):

        def moved(x: Any, shift: Any, order: int = order, size: int = size) -> Any:
            grid = jnp.meshgrid(jnp.arange(size), jnp.arange(size), indexing="ij")
            at = [a + 4 * s for a, s in zip(grid, shift, strict=True)]
            return jax.vmap(
                lambda image: jax.scipy.ndimage.map_coordinates(image, at, order, mode="nearest")
            )(x)

        add(
            f"moved_{batch}x{size}_{order}",
            moved,
            Arg((batch, size, size)),
            Arg((2, size, size)),
        )
    for batch, size, window in sizes("8x128x3 2x512x5 32x64x2"):
        x = Arg((batch, size, size))
        add(
            f"largest_of_windows_{batch}x{size}_{window}",
            lambda x, w=window: lax.reduce_window(
                x, -jnp.inf, lax.max, (1, w, w), (1, 1, 1), "SAME"
            ),
            x,
        )
        gradient = jax.grad(
            lambda x, w=window: (
                lax.reduce_window(x, 0.0, lax.add, (1, w, w), (1, w, w), "VALID") ** 2
            ).sum()
        )
        add(f"sums_of_windows_gradient_{batch}x{size}_{window}", gradient, x)


def _blocks_of_images(add: Add) -> None:
    """Transposes of blocks, as of transforms and of attention in windows."""
    for (height, width, block), (dtype, tag) in itertools.product(
        sizes("512x512x8 2048x1024x16 1024x1024x4"), TYPES
    ):

        def blocked(x: Any, b: int = block) -> Any:
            rows, columns = x.shape
            parts = x.reshape(rows // b, b, columns // b, b).transpose(0, 2, 1, 3)
            return (parts.astype(F32) * 0.5).astype(x.dtype)

        x = Arg((height, width), dtype)
        add(f"blocked_{tag}_{height}x{width}_{block}", blocked, x)
        add(f"blocked_product_{tag}_{height}x{width}_{block}", _block_product(block), x)
    for (batch, count, length, heads, width), (dtype, tag) in itertools.product(
        sizes("2x16x64x8x64 1x32x128x4x32 4x8x256x16x64"), TYPES
    ):
        x = Arg((batch, count * length, heads, width), dtype)

        def near(q: Any, k: Any, count: int = count, length: int = length) -> Any:
            def cut(array: Any) -> Any:
                return array.reshape(array.shape[0], count, length, *array.shape[2:])

            return jnp.einsum("bnqhd,bnkhd->bnhqk", cut(q), cut(k))

        add(f"near_scores_{tag}_{batch}x{count}x{length}x{heads}x{width}", near, x, x)


def _block_product(block: int) -> Callable[[Any], Any]:
    def transformed(x: Any) -> Any:
        rows, columns = x.shape
        basis = jnp.cos(jnp.arange(block)[:, None] * (jnp.arange(block) + 0.5) * 3.14 / block)
        parts = x.reshape(rows // block, block, columns // block, block).transpose(0, 2, 1, 3)
        return jnp.einsum("ij,abjk,lk->abil", basis.astype(x.dtype), parts, basis.astype(x.dtype))

    return transformed


def _further_products(add: Add) -> None:
    for m, k, n in sizes("64x4096x4096 2048x2048x64 512x512x2048 3000x1000x500 8x512x16384"):
        for dtype, tag in TYPES:
            x, w = Arg((m, k), dtype), Arg((k, n), dtype, scale=0.05)
            name = f"{tag}_{m}x{k}x{n}"
            add(f"tanh_of_product_{name}", lambda x, w: jnp.tanh(x @ w), x, w)
            add(f"product_by_rows_{name}", lambda x, w: x @ w.T, x, Arg((n, k), dtype))
            add(f"product_squared_{name}", lambda x, w: ((x @ w) ** 2).sum(), x, w)


def _further_convolutions(add: Add) -> None:
    layouts = ("NHWC", "HWIO", "NHWC")
    for batch, size, inputs, outputs, window, stride in sizes(
        "4x64x32x32x3x1 8x32x128x256x3x2 16x28x192x192x1x1 2x128x16x64x5x1 64x14x256x256x3x1"
    ):
        x = Arg((batch, size, size, inputs), BF16)
        w = Arg((window, window, inputs, outputs), BF16, scale=0.05)

        def convolved(x: Any, w: Any, s: int = stride) -> Any:
            return lax.conv_general_dilated(x, w, (s, s), "SAME", dimension_numbers=layouts)

        name = f"{batch}x{size}_{inputs}to{outputs}_{window}by{stride}"
        loss = lambda x, w: (convolved(x, w).astype(F32) ** 2).sum()  # noqa: E731
        add(f"weight_gradient_{name}", jax.grad(loss, 1), x, w)
        add(f"input_gradient_{name}", jax.grad(loss, 0), x, w)
        add(
            f"convolved_up_{name}",
            lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=layouts),
            x,
            w,
        )
    for batch, size, channels in sizes("2x32x16 4x16x64"):
        x = Arg((batch, size, size, size, channels), BF16)
        w = Arg((3, 3, 3, channels, channels), BF16, scale=0.05)
        add(
            f"convolved3_{batch}x{size}x{channels}",
            lambda x, w: lax.conv_general_dilated(
                x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
            ),
            x,
            w,
        )


def _further_solves(add: Add) -> None:
    for (n, columns), lower in itertools.product(
        sizes("96x96 256x1 512x512 1024x64 1536x1536 2048x16"), (True, False)
    ):
        a, b = Arg((n, n), identity=4.0 * n, scale=0.01), Arg((n, columns))
        add(
            f"triangle_{n}x{columns}_{'lower' if lower else 'upper'}",
            lambda a, b, low=lower: jax.scipy.linalg.solve_triangular(a, b, lower=low),
            a,
            b,
        )
        if lower and columns == n:
            gradient = jax.grad(
                lambda a, b: (jax.scipy.linalg.solve_triangular(a, b, lower=True) ** 2).sum(),
                (0, 1),
            )
            add(f"triangle_gradient_{n}", gradient, a, b)
            add(
                f"cholesky_gradient_{n}",
                jax.grad(
                    lambda a: jnp.linalg.cholesky(a @ a.T + a.shape[0] * jnp.eye(a.shape[0])).sum()
                ),
                a,
            )


def _gathered_sums(add: Add) -> None:
    """Sums and products of rows that are read at places given."""
    for values, rows, columns in sizes("1024x64x4096 65536x512x2048 1048576x4096x256"):
        table, index = Arg((values,)), Arg((rows, columns), jnp.int32, below=values)
        name = f"{values}_{rows}x{columns}"
        add(f"gathered_mean_{name}", lambda t, i: t[i].mean(1), table, index)
        add(f"gathered_max_{name}", lambda t, i: jnp.exp(t[i]).max(1), table, index)
        add(f"gathered_pair_{name}", lambda t, i: t[i] * 2 + t[i // 2], table, index)
    for values, width, count, near in sizes("4096x64x512x16 32768x128x8192x8"):
        table, index = Arg((values, width)), Arg((count, near), jnp.int32, below=values)
        name = f"{values}x{width}_{count}x{near}"
        add(f"neighbours_mean_{name}", lambda t, i: t[i].mean(1), table, index)
        add(
            f"neighbours_weighted_{name}",
            lambda t, i, w: jnp.einsum("cnw,cn->cw", t[i], jax.nn.softmax(w, 1)),
            table,
            index,
            Arg((count, near)),
        )
