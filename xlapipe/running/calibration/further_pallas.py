"""Further programs of a calibration with Pallas kernels: attention of single tokens, products of
rows in groups, sums of chosen rows and of columns, histograms and codes of few bits."""

import itertools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlapipe.running.calibration.pallas_programs import (
    call_of,
    product_of,
    struct,
    whole,
)
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

F16, S8 = jnp.float16, jnp.int8


def further_pallas() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    of_products = (_tokens, _large_tiles, _groups, _few_bits)
    return programs_of((*of_products, _bags, _column_sums, _histograms, _normed_rows))


def _tokens(add: Add) -> None:
    """Attention of one token's heads, which share keys, over a part of the keys each."""
    for (batch, length, heads, width), parts, (side, warps, stages) in itertools.product(
        sizes("8x8192x16x128 64x1024x8x64 32x4096x16x128 4x32768x16x64"),
        (4, 16),
        sizes("128x4x2 64x2x3 32x4x1"),
    ):
        own = length // parts

        def kernel(q: Any, k: Any, v: Any, out: Any, own: int = own, side: int = side) -> None:
            query = q[...]

            def part(step: Any, carry: Any) -> Any:
                total, most, weight = carry
                at = pl.ds(step * side, side)
                score = jnp.dot(query, k[at, :].T, preferred_element_type=F32)
                larger = jnp.maximum(most, score.max(-1))
                share, past = jnp.exp(score - larger[:, None]), jnp.exp(most - larger)
                added = jnp.dot(share.astype(v.dtype), v[at, :], preferred_element_type=F32)
                return total * past[:, None] + added, larger, weight * past + share.sum(-1)

            rows = q.shape[0]
            zero = jnp.zeros(q.shape), jnp.full((rows,), -1e30), jnp.zeros((rows,))
            total, _, weight = lax.fori_loop(0, own // side, part, zero)
            out[...] = total / weight[:, None]

        rows = max(16, heads)
        keys = pl.BlockSpec((None, own, width), lambda b, i: (b, i, 0))
        fn = call_of(
            kernel,
            (batch, parts),
            [pl.BlockSpec((None, rows, width), lambda b, i: (b, 0, 0)), keys, keys],
            pl.BlockSpec((None, None, rows, width), lambda b, i: (b, i, 0, 0)),
            struct((batch, parts, rows, width), F32),
            warps=warps,
            stages=stages,
        )
        shape = (batch, length, width)
        add(
            f"pallas_tokens_{joined(shape)}_{rows}_{parts}_{side}x{warps}x{stages}",
            fn,
            Arg((batch, rows, width), BF16),
            Arg(shape, BF16),
            Arg(shape, BF16),
        )


def _large_tiles(add: Add) -> None:
    """Products in tiles of which a multiprocessor has one or two."""
    tiles = sizes("128x256x64x8x3 128x128x32x4x4 256x128x32x8x2 64x256x32x4x3 128x64x128x4x2")
    for shape, tile in itertools.product(sizes("4096x8192x1024 2048x2048x8192"), tiles):
        for dtype, tag in ((BF16, "bf16"), (F16, "f16")):
            rows, columns, terms = shape
            add(
                f"pallas_large_tiles_{tag}_{joined(shape)}_{joined(tile)}",
                product_of(shape, tile, dtype, scaled=False),
                Arg((rows, terms), dtype),
                Arg((terms, columns), dtype),
            )


def _groups(add: Add) -> None:
    """Products of rows, at loaded indices, with the weights of their group, also loaded."""
    for (groups, rows, terms, columns), (own, side, depth, warps) in itertools.product(
        sizes("8x4096x1024x2048 64x8192x512x1024"), sizes("64x128x32x4 16x64x64x4 128x128x32x8")
    ):

        def kernel(
            index: Any,
            group: Any,
            x: Any,
            w: Any,
            y: Any,
            depth: int = depth,
            own: int = own,
            side: int = side,
            terms: int = terms,
        ) -> None:
            at, number = index[...], group[0]

            def part(step: Any, total: Any) -> Any:
                steps = pl.ds(step * depth, depth)
                return total + jnp.dot(
                    x[at, steps], w[number, steps, :], preferred_element_type=F32
                )

            total = lax.fori_loop(0, terms // depth, part, jnp.zeros((own, side)))
            y[...] = total.astype(y.dtype)

        fn = call_of(
            kernel,
            (rows // own, columns // side),
            [
                pl.BlockSpec((own,), lambda i, j: (i,)),
                pl.BlockSpec((1,), lambda i, j: (i,)),
                whole(rows, terms),
                pl.BlockSpec((groups, terms, side), lambda i, j: (0, 0, j)),
            ],
            pl.BlockSpec((own, side), lambda i, j: (i, j)),
            struct((rows, columns), BF16),
            warps=warps,
            stages=3,
        )
        add(
            f"pallas_groups_{groups}x{rows}x{terms}x{columns}_{own}x{side}x{depth}x{warps}",
            fn,
            Arg((rows,), jnp.int32, below=rows),
            Arg((rows // own,), jnp.int32, below=groups),
            Arg((rows, terms), BF16),
            Arg((groups, terms, columns), BF16),
        )


def _few_bits(add: Add) -> None:
    """A vector or a few rows with weights of 8 bits, of which each group has a scale."""
    for (rows, terms, columns), (side, depth, warps) in itertools.product(
        sizes("16x4096x4096 16x8192x2048 64x2048x8192"), sizes("64x64x4 32x128x2 128x32x4")
    ):

        def kernel(
            x: Any, w: Any, scales: Any, y: Any, depth: int = depth, terms: int = terms
        ) -> None:
            def part(step: Any, total: Any) -> Any:
                at = pl.ds(step * depth, depth)
                weights = w[at, :].astype(F32) * scales[step, :][None]
                return total + jnp.dot(x[:, at], weights.astype(BF16), preferred_element_type=F32)

            total = lax.fori_loop(0, terms // depth, part, jnp.zeros(y.shape))
            y[...] = total.astype(y.dtype)

        fn = call_of(
            kernel,
            (columns // side,),
            [
                whole(rows, terms),
                pl.BlockSpec((terms, side), lambda j: (0, j)),
                pl.BlockSpec((terms // depth, side), lambda j: (0, j)),
            ],
            pl.BlockSpec((rows, side), lambda j: (0, j)),
            struct((rows, columns), BF16),
            warps=warps,
        )
        add(
            f"pallas_few_bits_{rows}x{terms}x{columns}_{side}x{depth}x{warps}",
            fn,
            Arg((rows, terms), BF16),
            Arg((terms, columns), S8, below=100),
            Arg((terms // depth, columns)),
        )


def _bags(add: Add) -> None:
    """Sums of some rows of a table for each program."""
    for (table, width), count, (bags, warps) in itertools.product(
        sizes("100000x128 1000000x64 20000x512"), (8, 32), sizes("2048x4 16384x1 16384x4")
    ):

        def kernel(index: Any, rows: Any, out: Any, count: int = count) -> None:
            def part(step: Any, total: Any) -> Any:
                return total + rows[index[step], :].astype(F32)

            out[...] = lax.fori_loop(0, count, part, jnp.zeros(out.shape))

        for dtype, tag in TYPES:
            fn = call_of(
                kernel,
                (bags,),
                [pl.BlockSpec((None, count), lambda i: (i, 0)), whole(table, width)],
                pl.BlockSpec((None, width), lambda i: (i, 0)),
                struct((bags, width), F32),
                warps=warps,
            )
            add(
                f"pallas_bags_{tag}_{table}x{width}_{count}_{bags}x{warps}",
                fn,
                Arg((bags, count), jnp.int32, below=table),
                Arg((table, width), dtype),
            )


def _column_sums(add: Add) -> None:
    """Of products of two arrays, in steps over blocks of rows, as of gradients of scales."""
    for (rows, columns), (own, side, warps) in itertools.product(
        sizes("8192x768 4096x4096 65536x256"), sizes("16x16x4 32x64x4 128x16x2")
    ):

        def kernel(
            x: Any, g: Any, scale: Any, total: Any, own: int = own, rows: int = rows
        ) -> None:
            def part(step: Any, carry: Any) -> Any:
                at = pl.ds(step * own, own)
                wide = x[at, :].astype(F32) * scale[at][:, None]
                return carry + (wide * g[at, :].astype(F32)).sum(0)

            total[...] = lax.fori_loop(0, rows // own, part, jnp.zeros(total.shape))

        for dtype, tag in TYPES:
            block = pl.BlockSpec((rows, side), lambda j: (0, j))
            fn = call_of(
                kernel,
                (columns // side,),
                [block, block, whole(rows)],
                pl.BlockSpec((side,), lambda j: (j,)),
                struct((columns,), F32),
                warps=warps,
            )
            add(
                f"pallas_column_sums_{tag}_{rows}x{columns}_{own}x{side}x{warps}",
                fn,
                Arg((rows, columns), dtype),
                Arg((rows, columns), dtype),
                Arg((rows,)),
            )


def _histograms(add: Add) -> None:
    """Counts of the values of each row, in device memory."""
    for (rows, columns, bins), (side, warps) in itertools.product(
        sizes("128x65536x256 2048x4096x64 16x262144x4096"), sizes("1024x4 256x2")
    ):

        def kernel(x: Any, start: Any, out: Any, side: int = side) -> None:
            def part(step: Any, carry: Any) -> Any:
                values = x[pl.ds(step * side, side)]
                plgpu.atomic_add(out, (values,), jnp.ones((side,)))
                return carry

            lax.fori_loop(0, x.shape[0] // side, part, 0)

        fn = call_of(
            kernel,
            (rows,),
            [pl.BlockSpec((None, size), lambda i: (i, 0)) for size in (columns, bins)],
            pl.BlockSpec((None, bins), lambda i: (i, 0)),
            struct((rows, bins), F32),
            warps=warps,
            aliases={1: 0},
        )
        add(
            f"pallas_histograms_{rows}x{columns}x{bins}_{side}x{warps}",
            lambda x, fn=fn, rows=rows, bins=bins: fn(x, jnp.zeros((rows, bins))),
            Arg((rows, columns), jnp.int32, below=bins),
        )


def _normed_rows(add: Add) -> None:
    """Gradients of norms: two arrays and their scales, two sums over each row."""

    def kernel(x: Any, g: Any, w: Any, dx: Any) -> None:
        wide, slope = x[...].astype(F32), g[...].astype(F32) * w[...][None]
        scale = lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
        inner = (slope * wide).mean(-1, keepdims=True) * scale**3
        dx[...] = (slope * scale - wide * inner).astype(dx.dtype)

    for (rows, columns), (own, warps) in itertools.product(
        sizes("4096x1024 16384x2048 8192x4096"), sizes("1x4 1x8 4x8")
    ):
        for dtype, tag in TYPES:
            block = pl.BlockSpec((own, columns), lambda i: (i, 0))
            fn = call_of(
                kernel,
                (rows // own,),
                [block, block, whole(columns)],
                block,
                struct((rows, columns), dtype),
                warps=warps,
            )
            add(
                f"pallas_normed_rows_{tag}_{rows}x{columns}_{own}x{warps}",
                fn,
                Arg((rows, columns), dtype),
                Arg((rows, columns), dtype),
                Arg((columns,)),
            )
