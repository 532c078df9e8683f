"""Programs of a calibration that add to rows of tables, and products with rows of a vocabulary.

Updates of one row meet in the L2 cache, more of them the fewer rows there are. Vocabularies are
large and odd, so that rows do not start at multiples of 16 bytes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.running.calibration.timed_program import (
    BF16,
    F32,
    Add,
    Arg,
    TimedProgram,
    joined,
    programs_of,
    sizes,
)

_RANDOM_PRODUCTS = 60
# As models have them.
_VOCABULARIES = (32003, 50257, 30522, 61443, 50021, 92553, 32769, 151669, 128257, 250002, 65001)


def table_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    return programs_of(
        (_added_rows, _rows_in_order, _position_biases, _blocks_of_rows, _vocabularies, _scans)
    )


def _forms(add: Add, name: str, index: Any, rows: int, width: tuple[int, ...], count: int) -> None:
    """Adds of several types, which are atomic instructions or attempts that are made again."""
    table, updates = Arg((rows, *width)), Arg((count, *width))
    short, few = Arg((rows, *width), BF16), Arg((count, *width), BF16)
    numbers = Arg((count,), jnp.int32, below=rows) if index is None else None

    def at(given: Any) -> Any:
        return given[0] if given else index()

    given = (numbers,) if numbers is not None else ()
    add(f"{name}_f32", lambda t, u, *i: t.at[at(i)].add(u), table, updates, *given)
    add(f"{name}_minus_f32", lambda t, u, *i: t.at[at(i)].add(-u), table, updates, *given)
    add(f"{name}_bf16", lambda t, u, *i: t.at[at(i)].add(u), short, few, *given)


def _added_rows(add: Add) -> None:
    """At random: rows of the table, width, updates."""
    for rows, width, count in sizes(
        "1x1x20000 4x1x200000 32x1x60000 500x1x1000000 30000x1x200000 2000000x1x300000 "
        "16x3x100000 200x3x50000 4000x3x400000 60000x3x400000 "
        "8x12x8000 32x12x54000 32x12x13000 1000x12x54000 "
        "64x16x20000 1024x16x300000 40000x16x300000 "
        "4x64x3000 32x64x30000 256x64x30000 2048x64x60000 8192x64x60000 60000x64x60000 "
        "3000000x64x200000 500000x64x100000 "
        "16x256x2000 128x256x16000 1024x256x16000 16384x256x16000 "
        "2x1024x600 64x1024x8000 1024x1024x8000 50257x1024x8000"
    ):
        _forms(add, f"added_{rows}x{width}_{count}", None, rows, (width,), count)


def _rows_in_order(add: Add) -> None:
    """Updates of one row follow each other, or the rows take turns; also buckets of distances."""
    for rows, width, count in sizes("32x12x54000 300x4x60000 1000x64x20000 64x1x100000"):
        name = f"{rows}x{width}_{count}"

        def follow(rows: int = rows, count: int = count) -> Any:
            return lax.iota(jnp.int32, count) * rows // count

        def turns(rows: int = rows, count: int = count) -> Any:
            return lax.iota(jnp.int32, count) % rows

        _forms(add, f"following_{name}", follow, rows, (width,), count)
        _forms(add, f"in_turns_{name}", turns, rows, (width,), count)
    for length, heads in sizes("120x12 233x12 512x8 300x6"):
        table, updates = Arg((32, heads)), Arg((length * length, heads))

        def added(t: Any, u: Any, length: int = length) -> Any:
            return t.at[_buckets(length)].add(u)

        add(f"buckets_{length}x{heads}_f32", added, table, updates)


def _buckets(length: int) -> Any:
    """For each two of some positions, one of 32 buckets of their distance, as T5 has them."""
    place = lax.iota(jnp.int32, length)
    distance = place[None, :] - place[:, None]
    far = jnp.abs(distance)
    large = 8 + jnp.log(jnp.maximum(far, 1) / 8.0) / np.log(16.0) * 8
    own = jnp.where(far < 8, far, jnp.minimum(large.astype(jnp.int32), 15))
    return (own + 16 * (distance > 0)).reshape(-1)


def _position_biases(add: Add) -> None:
    """Gradients of biases of attention: most updates are small beside what is there.

    Of bfloat16, those change nothing, so that no other one tries again: random numbers of one size
    take 1.6 to 157 times as long. The deviation of logits is about 1, or 9 of peaked ones.
    """
    for length, heads in sizes("120x12 233x12 512x8"):
        for scale, name in ((1.0, ""), (3.0, "_peaked")):
            _bias(add, f"{length}x{heads}{name}", length, heads, 4, scale)
    _bias(add, "233x12_causal", 233, 12, 4, 1.0, causal=True)
    _bias(add, "233x12_of_32", 233, 12, 32, 1.0)


def _bias(
    add: Add, name: str, length: int, heads: int, batch: int, scale: float, *, causal: bool = False
) -> None:
    def gradient(table: Any, q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        def loss(table: Any) -> Any:
            bias = table[_buckets(length)].reshape(length, length, heads).transpose(2, 0, 1)
            logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8 + bias
            if causal:
                logits = jnp.where(jnp.tril(jnp.ones((length, length), bool)), logits, -1e4)
            weights = jax.nn.softmax(logits.astype(F32), -1).astype(BF16)
            return (jnp.einsum("bhqk,bkhd->bqhd", weights, v) * cotangent).astype(F32).sum()

        return jax.grad(loss)(table)

    def heads_of(scale: float) -> Arg:
        return Arg((batch, length, heads, 64), BF16, scale=scale)

    table, q, v = Arg((32, heads), BF16, scale=0.02), heads_of(scale), heads_of(1.0)
    add(f"position_bias_{name}", gradient, table, q, q, v, heads_of(1e-2))


def _blocks_of_rows(add: Add) -> None:
    """Rows of several dimensions, of which the last is odd: rows, dimensions, updates."""
    for rows, first, last, count in sizes("20000x4x47x100000 700x64x9x9000 5000x7x5x60000"):
        _forms(add, f"blocks_{rows}x{first}x{last}_{count}", None, rows, (first, last), count)


def _vocabularies(add: Add) -> None:
    """Products with tables of words, and their gradients: tokens, width, words."""
    forms = {
        "scores": "nd,dv->nv",
        "scores_of_rows": "nd,vd->nv",
        "back": "nv,dv->nd",
        "back_of_rows": "nv,vd->nd",
        "weights": "nd,nv->dv",
        "weights_of_rows": "nd,nv->vd",
    }
    for seed in range(_RANDOM_PRODUCTS):
        rng = np.random.default_rng(seed)
        name, form = list(forms.items())[seed % len(forms)]
        of = {
            "n": int(2 ** rng.uniform(8, 13)) // 64 * 64,
            "d": int(2 ** rng.uniform(8.5, 12)) // 128 * 128,
            "v": int(rng.choice(_VOCABULARIES)),
        }
        one, other = (tuple(of[x] for x in part) for part in form.split("->")[0].split(","))
        add(
            f"vocabulary_{name}_{joined(of.values())}",
            lambda a, b, form=form: jnp.einsum(form, a, b),
            Arg(one, BF16),
            Arg(other, BF16, scale=0.02),
        )


def _scans(add: Add) -> None:
    """Associative scans of states: batch, length, width, states."""

    def pair(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def states(rate: Any, x: Any, b: Any) -> Any:
        fade = jnp.exp(-jnp.abs(rate)[..., None] * jnp.arange(1.0, b.shape[-1] + 1))
        _, y = lax.associative_scan(pair, (fade, (rate * x)[..., None] * b[:, :, None]), axis=1)
        return y

    for batch, length, width, count in sizes("2x600x256x16 1x1024x512x8 4x300x384x16 8x128x200x4"):
        x, b = Arg((batch, length, width)), Arg((batch, length, count))
        name = joined((batch, length, width, count))
        add(f"scanned_{name}", lambda r, x, b: states(r, x, b).sum(-1), x, x, b)
        add(
            f"scanned_gradient_{name}",
            jax.grad(lambda r, x, b: jnp.square(states(r, x, b)).sum(), (0, 1, 2)),
            *(x, x, b),
        )
    for rows, length in sizes("64x1000 2000x333 16x20000"):
        x = Arg((rows, length), F32)
        add(
            f"scanned_rows_{rows}x{length}",
            lambda a, b: lax.associative_scan(pair, (jnp.tanh(a), b), axis=1)[1],
            *(x, x),
        )
