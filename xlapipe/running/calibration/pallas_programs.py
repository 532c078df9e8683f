"""Programs of a calibration with Pallas kernels, which Triton compiles: products, attention, rows,
loops over time, gathers and arithmetic."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

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

F16, F8, S8 = jnp.float16, jnp.float8_e4m3fn, jnp.int8


def pallas_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    return programs_of((*_OF_PRODUCTS, *_OF_ROWS, *_OTHERS))


def call_of(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    inputs: list[pl.BlockSpec],
    outputs: Any,
    results: Any,
    *,
    warps: int = 4,
    stages: int = 2,
    aliases: dict[int, int] | None = None,
) -> Callable[..., Any]:
    """A kernel for Triton over a grid."""
    return pl.pallas_call(
        kernel,
        out_shape=results,
        grid=grid,
        in_specs=inputs,
        out_specs=outputs,
        input_output_aliases=aliases or {},
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
    )


def _dot(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, preferred_element_type=F32)


def whole(*shape: int) -> pl.BlockSpec:
    """A whole array for each program."""
    return pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


def struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a result."""
    return jax.ShapeDtypeStruct(shape, dtype)


def product_of(shape: tuple[int, ...], tile: tuple[int, ...], result: Any, scaled: bool) -> Any:
    """Of matrices, in tiles.

    Args:
      shape: rows, columns and terms.
      tile: rows, columns, terms of a step, warps and stages.
      scaled: whether a third operand scales the columns.
    """
    rows, columns, terms = shape
    own, side, depth, warps, stages = tile

    def kernel(x: Any, y: Any, *rest: Any) -> None:
        def part(step: Any, total: Any) -> Any:
            at = pl.ds(step * depth, depth)
            right = y[at, :]
            if scaled:
                right = right.astype(x.dtype)
            return total + _dot(x[:, at], right)

        zero = jnp.zeros((own, side))
        total = lax.fori_loop(0, terms // depth, part, zero)
        if scaled:
            total = total * rest[0][...][None]
        rest[-1][...] = total.astype(result)

    specs = [
        pl.BlockSpec((own, terms), lambda i, j: (i, 0)),
        pl.BlockSpec((terms, side), lambda i, j: (0, j)),
        *([pl.BlockSpec((side,), lambda i, j: (j,))] if scaled else []),
    ]
    grid = (rows // own, columns // side)
    out = pl.BlockSpec((own, side), lambda i, j: (i, j))
    return call_of(
        kernel, grid, specs, out, struct((rows, columns), result), warps=warps, stages=stages
    )


def _products(add: Add) -> None:
    """Of matrices, in tiles, with a loop over the terms."""
    tiles = sizes(
        "128x128x32x4x3 128x128x64x8x3 64x64x32x4x4 64x128x64x4x2 32x64x64x2x1 16x64x128x4x3"
    )
    shapes = sizes("512x512x4096 2048x2048x2048 4096x4096x4096 8192x1024x1024 1024x8192x512")
    for number, (shape, tile) in enumerate(itertools.product(shapes, tiles)):
        for dtype, tag in ((BF16, "bf16"), (F16, "f16"), (F32, "f32")):
            if (tag == "f16" and number % 3) or (tag == "f32" and number % 2):
                continue
            name = f"pallas_product_{tag}_{joined(shape)}_{joined(tile)}"
            rows, columns, terms = shape
            fn = product_of(shape, tile, dtype, scaled=False)
            add(name, fn, Arg((rows, terms), dtype), Arg((terms, columns), dtype))


def _packed_products(add: Add) -> None:
    """With weights of eight bits, which the kernel converts."""
    tiles = sizes("128x128x32x4x3 64x64x64x4x2 16x128x64x4x3 32x32x128x2x1")
    shapes = sizes("16x4096x4096 512x4096x4096 4096x4096x1024")
    for shape, tile in itertools.product(shapes, tiles):
        rows, columns, terms = shape
        if rows % tile[0]:
            continue
        fn = product_of(shape, tile, BF16, scaled=True)
        args = (Arg((rows, terms), BF16), Arg((terms, columns), S8, below=100), Arg((columns,)))
        add(f"pallas_packed_{joined(shape)}_{joined(tile)}", fn, *args)


def _attention(add: Add) -> None:
    """Of one head for each program and block of queries, over blocks of keys."""
    for (batch, length, heads, width), (own, side, warps, stages) in itertools.product(
        sizes("4x1024x8x64 1x4096x16x64 2x2048x16x128 32x256x8x64 1x8192x4x128"),
        sizes("128x128x4x2 64x64x4x2 128x64x8x3 32x32x2x1"),
    ):
        for dtype, causal in ((BF16, True), (F16, False), (F32, True)):
            if dtype == F32 and own > 64:
                continue

            def kernel(
                q: Any,
                k: Any,
                v: Any,
                out: Any,
                causal: bool = causal,
                own: int = own,
                side: int = side,
                length: int = length,
                width: int = width,
            ) -> None:
                first = pl.program_id(0) * own
                query = q[...]

                def part(step: Any, carry: Any) -> Any:
                    total, most, weight = carry
                    at = pl.ds(step * side, side)
                    score = _dot(query, k[at, :].T) * 0.125
                    if causal:
                        rows = first + jnp.arange(own)
                        columns = step * side + jnp.arange(side)
                        score = jnp.where(rows[:, None] >= columns[None], score, -1e30)
                    larger = jnp.maximum(most, score.max(-1))
                    share, past = jnp.exp(score - larger[:, None]), jnp.exp(most - larger)
                    added = _dot(share.astype(v.dtype), v[at, :])
                    return total * past[:, None] + added, larger, weight * past + share.sum(-1)

                zero = jnp.zeros((own, width)), jnp.full((own,), -1e30), jnp.zeros((own,))
                last = pl.cdiv(first + own, side) if causal else length // side
                total, _, weight = lax.fori_loop(0, last, part, zero)
                out[...] = (total / weight[:, None]).astype(out.dtype)

            block = pl.BlockSpec((None, own, None, width), lambda i, b, h: (b, i, h, 0))
            whole = pl.BlockSpec((None, length, None, width), lambda i, b, h: (b, 0, h, 0))
            shape = (batch, length, heads, width)
            tag = f"{jnp.dtype(dtype).name}_{'causal_' if causal else ''}{joined(shape)}"
            add(
                f"pallas_attention_{tag}_{own}x{side}x{warps}x{stages}",
                call_of(
                    kernel,
                    (length // own, batch, heads),
                    [block, whole, whole],
                    block,
                    struct(shape, dtype),
                    warps=warps,
                    stages=stages,
                ),
                *[Arg(shape, dtype)] * 3,
            )


def _gradients_of_attention(add: Add) -> None:
    """Of keys and values, for each block of them over blocks of queries: four products a step."""
    for (heads, length, width), (own, side, warps, stages) in itertools.product(
        sizes("32x1024x64 16x4096x64 64x2048x128"), sizes("64x64x4x2 128x32x4x2 32x32x4x1")
    ):

        def kernel(
            q: Any,
            k: Any,
            v: Any,
            g: Any,
            dk: Any,
            dv: Any,
            own: int = own,
            side: int = side,
            length: int = length,
            width: int = width,
        ) -> None:
            first = pl.program_id(1) * own
            key, value = k[...], v[...]

            def part(step: Any, carry: Any) -> Any:
                of_key, of_value = carry
                at = pl.ds(step * side, side)
                query, given = q[at, :], g[at, :]
                score = _dot(query, key.T) * 0.125
                rows, columns = step * side + jnp.arange(side), first + jnp.arange(own)
                share = jnp.exp(jnp.where(rows[:, None] >= columns[None], score, -1e30))
                slope = share * _dot(given, value.T)
                of_value += _dot(share.astype(given.dtype).T, given)
                return of_key + _dot(slope.astype(query.dtype).T, query), of_value

            zero = jnp.zeros((own, width))
            of_key, of_value = lax.fori_loop(first // side, length // side, part, (zero, zero))
            dk[...], dv[...] = of_key.astype(dk.dtype), of_value.astype(dv.dtype)

        block = pl.BlockSpec((None, own, width), lambda h, i: (h, i, 0))
        whole = pl.BlockSpec((None, length, width), lambda h, i: (h, 0, 0))
        shape = (heads, length, width)
        add(
            f"pallas_attention_gradient_{joined(shape)}_{own}x{side}x{warps}x{stages}",
            call_of(
                kernel,
                (heads, length // own),
                [whole, block, block, whole],
                [block, block],
                [struct(shape, BF16)] * 2,
                warps=warps,
                stages=stages,
            ),
            *[Arg(shape, BF16)] * 4,
        )


def _rows(add: Add) -> None:
    """Norms, softmax and 8-bit codes of rows that a block holds whole."""

    def softmax(x: Any, w: Any, y: Any) -> None:
        wide = x[...].astype(F32)
        share = jnp.exp(wide - wide.max(-1, keepdims=True))
        y[...] = (share / share.sum(-1, keepdims=True)).astype(y.dtype)

    def norm(x: Any, w: Any, y: Any) -> None:
        wide = x[...].astype(F32)
        mean = wide.mean(-1, keepdims=True)
        scale = lax.rsqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
        y[...] = ((wide - mean) * scale * w[...][None]).astype(y.dtype)

    def summed(x: Any, w: Any, y: Any) -> None:
        y[...] = jnp.cumsum(x[...].astype(F32), axis=1).astype(y.dtype)

    def coded(x: Any, w: Any, y: Any) -> None:
        wide = x[...].astype(F32)
        y[...] = (wide * (448.0 / jnp.abs(wide).max(-1, keepdims=True))).astype(F8)

    for (rows, columns), (own, warps) in itertools.product(
        sizes("512x4096 8192x1024 32768x256 4096x8192 65536x512"), sizes("1x4 4x4 2x8 16x2")
    ):
        if own * columns > 32768:
            continue
        for (dtype, tag), fn in itertools.product(TYPES, (softmax, norm, summed, coded)):
            if (fn is coded) != (tag == "bf16" and own < 4) and fn is coded:
                continue
            block = pl.BlockSpec((own, columns), lambda i: (i, 0))
            result = struct((rows, columns), F8 if fn is coded else dtype)
            add(
                f"pallas_{fn.__name__}_{tag}_{rows}x{columns}_{own}x{warps}",
                call_of(fn, (rows // own,), [block, whole(columns)], block, result, warps=warps),
                Arg((rows, columns), dtype),
                Arg((columns,)),
            )


def _long_rows(add: Add) -> None:
    """The logarithm of a sum over a row in blocks, as of a loss over a vocabulary."""
    for (rows, columns), (own, side, warps) in itertools.product(
        sizes("4096x32768 1024x131072 16384x8192"), sizes("1x2048x4 4x1024x8 16x256x4")
    ):

        def kernel(
            x: Any, y: Any, own: int = own, side: int = side, columns: int = columns
        ) -> None:
            def part(step: Any, carry: Any) -> Any:
                most, total = carry
                wide = x[:, pl.ds(step * side, side)].astype(F32)
                larger = jnp.maximum(most, wide.max(-1))
                return larger, total * jnp.exp(most - larger) + jnp.exp(wide - larger[:, None]).sum(
                    -1
                )

            start = jnp.full((own,), -1e30), jnp.zeros((own,))
            most, total = lax.fori_loop(0, columns // side, part, start)
            y[...] = most + jnp.log(total)

        for dtype, tag in TYPES:
            add(
                f"pallas_log_sum_{tag}_{rows}x{columns}_{own}x{side}x{warps}",
                call_of(
                    kernel,
                    (rows // own,),
                    [pl.BlockSpec((own, columns), lambda i: (i, 0))],
                    pl.BlockSpec((own,), lambda i: (i,)),
                    struct((rows,), F32),
                    warps=warps,
                ),
                Arg((rows, columns), dtype),
            )


def _element_wise(add: Add) -> None:
    """A gated activation, and an optimizer's update in place."""

    def gated(x: Any, y: Any, z: Any) -> None:
        wide = x[...].astype(F32)
        z[...] = (wide * jax.nn.sigmoid(wide) * y[...].astype(F32)).astype(z.dtype)

    def updated(p: Any, m: Any, v: Any, g: Any, *out: Any) -> None:
        slope = g[...].astype(F32)
        first = 0.9 * m[...] + 0.1 * slope
        second = 0.95 * v[...] + 0.05 * slope * slope
        out[0][...] = p[...] - 1e-3 * (first / (jnp.sqrt(second) + 1e-8) + 0.1 * p[...])
        out[1][...], out[2][...] = first, second

    for elements, (own, warps) in itertools.product(
        (1 << 16, 1 << 20, 1 << 24, 1 << 26), sizes("256x1 1024x4 4096x8")
    ):
        block, grid = pl.BlockSpec((own,), lambda i: (i,)), (elements // own,)
        for dtype, tag in TYPES:
            result = struct((elements,), dtype)
            add(
                f"pallas_gated_{tag}_{elements}_{own}x{warps}",
                call_of(gated, grid, [block] * 2, block, result, warps=warps),
                *[Arg((elements,), dtype)] * 2,
            )
        fn = call_of(
            updated,
            grid,
            [block] * 4,
            [block] * 3,
            [struct((elements,), F32)] * 3,
            warps=warps,
            aliases={0: 0, 1: 1, 2: 2},
        )
        add(
            f"pallas_updated_{elements}_{own}x{warps}",
            lambda kept, g, fn=fn: (tuple(fn(*kept, g)),),
            (Arg((elements,)), Arg((elements,)), Arg((elements,), scale=0.0)),
            Arg((elements,), BF16),
            carried=True,
        )


def _over_time(add: Add) -> None:
    """A state of each channel, step after step, as of state-space models."""
    for (batch, length, width), states, (own, warps) in itertools.product(
        sizes("8x1024x1024 2x4096x2048 32x512x512"), (1, 16), sizes("64x1 128x4 32x2")
    ):

        def kernel(
            x: Any,
            a: Any,
            b: Any,
            y: Any,
            own: int = own,
            states: int = states,
            length: int = length,
        ) -> None:
            def one(step: Any, state: Any) -> Any:
                value, rate = x[step, :].astype(F32), jax.nn.sigmoid(a[step, :].astype(F32))
                if states > 1:
                    mixed = b[step, :].astype(F32)
                    state = state * jnp.exp(-rate)[:, None] + value[:, None] * mixed[None]
                    y[step, :] = (state * mixed[None]).sum(-1).astype(y.dtype)
                else:
                    state = state * rate + value
                    y[step, :] = state.astype(y.dtype)
                return state

            lax.fori_loop(0, length, one, jnp.zeros((own, states) if states > 1 else (own,)))

        block = pl.BlockSpec((None, length, own), lambda b, i: (b, 0, i))
        mixing = pl.BlockSpec((None, length, states), lambda b, i: (b, 0, 0))
        shape = (batch, length, width)
        add(
            f"pallas_over_time_{joined(shape)}_{states}_{own}x{warps}",
            call_of(
                kernel,
                (batch, width // own),
                [block, block, mixing],
                block,
                struct(shape, BF16),
                warps=warps,
            ),
            *[Arg(shape, BF16)] * 2,
            Arg((batch, length, states), BF16),
        )


def _gathers(add: Add) -> None:
    """Rows of a table at given indices, one or several for each program."""
    for (rows, width), count, own in itertools.product(
        sizes("50000x1024 1000000x128 2000x4096"), (1024, 65536), (1, 16)
    ):

        def kernel(index: Any, table: Any, out: Any, own: int = own) -> None:
            if own == 1:
                out[0, :] = table[index[0], :]
            else:
                out[...] = table[index[...], :]

        add(
            f"pallas_gather_{rows}x{width}_{count}_{own}",
            call_of(
                kernel,
                (count // own,),
                [pl.BlockSpec((own,), lambda i: (i,)), whole(rows, width)],
                pl.BlockSpec((own, width), lambda i: (i, 0)),
                struct((count, width), BF16),
            ),
            Arg((count,), jnp.int32, below=rows),
            Arg((rows, width), BF16),
        )


def _arithmetic(add: Add) -> None:
    """Loops of cheap and of expensive operations on values in registers; forces of all pairs."""
    for elements, (own, warps), trips in itertools.product(
        (1 << 16, 1 << 20, 1 << 22), sizes("128x4 1024x4 256x1"), (32, 256)
    ):

        def squares(x: Any, y: Any, trips: int = trips) -> None:
            start = x[...]
            y[...] = lax.fori_loop(
                0, trips, lambda _, z: jnp.where(z * z < 4, z * z + start, z), start
            )

        def waves(x: Any, y: Any, trips: int = trips) -> None:
            y[...] = lax.fori_loop(0, trips, lambda _, z: jnp.sin(z) + jnp.exp(-z * z), x[...])

        block = pl.BlockSpec((own,), lambda i: (i,))
        for fn in (squares, waves):
            result = struct((elements,), F32)
            add(
                f"pallas_{fn.__name__}_{elements}_{own}x{warps}_{trips}",
                call_of(fn, (elements // own,), [block], block, result, warps=warps),
                Arg((elements,)),
            )
    for bodies, (own, side, warps) in itertools.product(
        (2048, 16384), sizes("64x64x4 128x32x4 32x128x2")
    ):

        def forces(x: Any, y: Any, f: Any, own: int = own, side: int = side) -> None:
            mine = x[...]

            def part(step: Any, total: Any) -> Any:
                apart = mine[:, None] - y[pl.ds(step * side, side)][None]
                return total + (apart * lax.rsqrt(apart * apart + 0.01) ** 3).sum(-1)

            f[...] = lax.fori_loop(0, y.shape[0] // side, part, jnp.zeros((own,)))

        block = pl.BlockSpec((own,), lambda i: (i,))
        add(
            f"pallas_forces_{bodies}_{own}x{side}x{warps}",
            call_of(
                forces,
                (bodies // own,),
                [block, whole(bodies)],
                block,
                struct((bodies,), F32),
                warps=warps,
            ),
            Arg((bodies,)),
            Arg((bodies,)),
        )


def _added(add: Add) -> None:
    """Sums of columns, each program's part added to the result."""
    for (rows, columns), (own, side, warps) in itertools.product(
        sizes("16384x1024 65536x256 4096x8192"), sizes("64x64x4 256x32x4 32x256x8")
    ):

        def kernel(x: Any, start: Any, total: Any) -> None:
            plgpu.atomic_add(total, (slice(None),), x[...].astype(F32).sum(0))

        fn = call_of(
            kernel,
            (rows // own, columns // side),
            [
                pl.BlockSpec((own, side), lambda i, j: (i, j)),
                pl.BlockSpec((side,), lambda i, j: (j,)),
            ],
            pl.BlockSpec((side,), lambda i, j: (j,)),
            struct((columns,), F32),
            warps=warps,
            aliases={1: 0},
        )
        add(
            f"pallas_added_{rows}x{columns}_{own}x{side}x{warps}",
            lambda x, fn=fn, columns=columns: fn(x, jnp.zeros((columns,))),
            Arg((rows, columns), BF16),
        )


_OF_PRODUCTS = (_products, _packed_products, _attention, _gradients_of_attention)
_OF_ROWS = (_rows, _long_rows, _gathers, _added)
_OTHERS = (_element_wise, _over_time, _arithmetic)
