"""Programs of a calibration at the edges of libraries, where kernels of even sizes say little.

Convolutions of few channels or in groups, products of small matrices or of rows that do not start
at multiples of 16 bytes, rows of large tables, the largest of many, and copies in loops.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.running.calibration.timed_program import (
    F32,
    TYPES,
    Add,
    Arg,
    TimedProgram,
    joined,
    programs_of,
    sizes,
)

_NHWC = ("NHWC", "HWIO", "NHWC")
_TRIPS = 12
_RANDOM_PRODUCTS = 24


def edge_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    return programs_of(
        (
            *(_first_convolutions, _convolutions_in_groups, _small_products, _odd_products),
            *(_rows_of_tables, _largest, _copies_in_loops, _small_inverses),
        )
    )


def _add_convolution(
    add: Add, name: str, x: Arg, w: Arg, stride: int, padding: str = "SAME", groups: int = 1
) -> None:
    def convolved(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), padding, dimension_numbers=_NHWC, feature_group_count=groups
        )

    def loss(x: Any, w: Any) -> Any:
        return (convolved(x, w).astype(F32) ** 2).sum()

    add(name, convolved, x, w)
    add(f"{name}_gradient", jax.grad(loss, (0, 1) if groups > 1 else 1), x, w)


def _first_convolutions(add: Add) -> None:
    """Of images with few channels: batch, size, channels, window, stride, results."""
    for number, shape in enumerate(
        sizes(
            "32x224x3x16x16x768 8x224x3x16x16x1024 64x224x3x32x32x768 16x384x3x16x16x768 "
            "128x32x3x4x4x192 64x96x3x8x8x384 24x252x3x14x14x512 32x224x3x7x2x64 8x256x3x7x2x64 "
            "128x32x3x3x1x64 256x28x1x3x1x32 64x64x3x5x2x96 16x128x4x3x1x320 4x64x4x3x1x128 "
            "16x256x1x5x1x16 32x128x6x3x2x48"
        )
    ):
        batch, size, channels, window, stride, results = shape
        dtype, tag = TYPES[number % 4 != 3]
        x = Arg((batch, size, size, channels), dtype)
        w = Arg((window, window, channels, results), dtype, scale=0.05)
        padding = "VALID" if window == stride else "SAME"
        _add_convolution(add, f"first_convolution_{tag}_{joined(shape)}", x, w, stride, padding)


def _convolutions_in_groups(add: Add) -> None:
    """Batch, size, channels, window, stride, groups."""
    for number, shape in enumerate(
        sizes(
            "16x56x128x3x1x128 32x28x192x3x1x192 64x14x384x3x1x384 64x7x960x3x1x960 "
            "8x112x96x3x2x96 32x28x240x5x1x240 32x14x672x5x2x672 16x56x96x7x1x96 32x14x384x7x1x384 "
            "16x56x128x3x1x32 32x28x256x3x1x8 32x14x512x3x2x32 4x64x320x3x1x320 8x32x64x3x1x64"
        )
    ):
        batch, size, channels, window, stride, groups = shape
        dtype, tag = TYPES[number % 4 != 3]
        x = Arg((batch, size, size, channels), dtype)
        w = Arg((window, window, channels // groups, channels), dtype, scale=0.1)
        name = f"grouped_convolution_{tag}_{joined(shape)}"
        _add_convolution(add, name, x, w, stride, groups=groups)


def _small_products(add: Add) -> None:
    """Of many small matrices: batch, rows, terms, columns."""
    for number, shape in enumerate(
        sizes(
            "100000x8x8x8 20000x16x16x16 50000x4x4x4 8192x24x24x24 3000x48x32x40 30000x3x3x3 "
            "200000x6x6x1 10000x12x12x12 4096x8x64x8 600x9x100x70 12000x8x8x32 2000x20x5x20"
        )
    ):
        batch, m, k, n = shape
        dtype, tag = TYPES[number % 3 == 2]
        a, b = Arg((batch, m, k), dtype), Arg((batch, k, n), dtype)
        label = f"{tag}_{joined(shape)}"
        add(f"small_product_{label}", lambda a, b: a @ b, a, b)
        one = Arg((m, m), dtype, scale=0.3)
        add(
            f"small_product_on_both_sides_{label}",
            lambda c, a: jnp.tanh(c @ a @ a.mT @ c.T),
            one,
            a,
        )
        add(
            f"small_product_of_one_{label}",
            lambda c, a: jnp.einsum("ij,bjk->bik", c, a) * 0.5,
            one,
            a,
        )


def _odd_products(add: Add) -> None:
    """Of random sizes, of which one is not a multiple of 8; also scores of queries and keys."""
    for seed in range(_RANDOM_PRODUCTS):
        rng = np.random.default_rng(seed)
        m, k, n = (int(2 ** rng.uniform(6, 12.5)) // 16 * 16 for _ in range(3))
        batch = (1, 1, 8, 40)[seed % 4]
        odd = int(rng.integers(1, 8))
        m, k, n = ((m + odd, k, n), (m, k + odd, n), (m, k, n + odd))[seed // 4 % 3]
        m, n = (max(16, size // (2 if batch > 1 else 1)) for size in (m, n))
        dtype, tag = TYPES[seed % 3 > 0]
        a, b = Arg((batch, m, k), dtype), Arg((batch, k, n), dtype, scale=k**-0.5)
        add(f"odd_product_{tag}_{batch}x{m}x{k}x{n}", lambda a, b: a @ b, a, b)
    for number, (batch, length, heads, width) in enumerate(
        sizes(
            "3x900x12x80 2x1500x8x64 8x333x12x64 4x700x16x128 16x197x12x64 8x577x16x64 1x1000x32x96"
        )
    ):
        dtype, tag = TYPES[number % 3 != 2]

        def scores(q: Any, k: Any, v: Any) -> Any:
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32), -1)
            return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)

        x = Arg((batch, length, heads, width), dtype, scale=0.3)
        add(f"odd_scores_{tag}_{batch}x{length}x{heads}x{width}", scores, x, x, x)


def _rows_of_tables(add: Add) -> None:
    """Rows of a large table at random places: rows of the table, width, rows that are read."""
    for number, (rows, width, count) in enumerate(
        sizes(
            "800000x48x100000 1000000x16x200000 4000000x2x500000 500000x64x60000 300000x128x50000 "
            "2000000x8x300000 50257x768x4200 128256x2048x8192 8000000x1x1000000 1000000x4x100000 "
            "100000x96x20000 3000000x32x40000"
        )
    ):
        dtype, tag = TYPES[number % 3 == 2]
        index = Arg((count,), jnp.int32, below=rows)
        # The indices of an argument repeat; these do not.
        add(
            f"table_rows_{tag}_{rows}x{width}_{count}",
            lambda t, i, n=rows: (
                jnp.take(t, (i * 7919 + jnp.arange(i.shape[0])) % n, axis=0, mode="clip") * 2
            ),
            Arg((rows, width), dtype),
            index,
        )


def _largest(add: Add) -> None:
    """Rows, columns, results."""
    for rows, columns, count in sizes(
        "12x160005x5 4x50257x50 60x32001x4 1x1000000x10 200x8000x8 16x151936x20 2000x1000x16 "
        "32x400000x1 8x30000x100"
    ):
        add(
            f"largest_{rows}x{columns}_{count}",
            lambda x, k=count: lax.top_k(x, k),
            Arg((rows, columns)),
        )


def _copies_in_loops(add: Add) -> None:
    """Two arrays change places in each trip, and rows of others move by one."""
    for number, (rows, columns) in enumerate(
        sizes("16x256 100x1000 900x1100 1024x2048 3000x1500 4096x8192 28x40 6000x5000")
    ):
        dtype, tag = TYPES[number % 2]

        def swapped(a: Any, b: Any) -> Any:
            return lax.fori_loop(0, _TRIPS, lambda _, p: (p[1], p[0] * 0.99), (a, b))

        def rolled(a: Any, b: Any) -> Any:
            def one(_: Any, c: Any) -> Any:
                return c + 0.01 * (jnp.roll(c, 1, 0) - jnp.roll(c, -1, 1)) * b

            return lax.fori_loop(0, _TRIPS, one, a)

        def stacked(a: Any, b: Any) -> Any:
            return lax.scan(lambda c, row: (c * 0.9 + row, c), a[0], a * b)

        x = Arg((rows, columns), dtype)
        for name, fn in (("swapped", swapped), ("rolled", rolled), ("stacked", stacked)):
            if name != "stacked" or rows <= 1000:
                add(f"loop_{name}_{tag}_{rows}x{columns}", fn, x, x)


def _small_inverses(add: Add) -> None:
    for batch, n in sizes("700x3 64x8 2000x4 100x16 10x40 30000x2"):
        x = Arg((batch, n, n), identity=4.0)
        add(f"inverse_{batch}x{n}", jnp.linalg.inv, x)
        add(f"solved_small_{batch}x{n}", jnp.linalg.solve, x, Arg((batch, n, 1)))
