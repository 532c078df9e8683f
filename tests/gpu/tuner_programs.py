"""Short programs that ask XLA's tuner for products and convolutions of all usual kinds and sizes.

Each is a small part of a step, with its gradient, so that casts, biases and activations are fused
as they are in steps. Sizes are drawn at random; small ones are as likely as large ones.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.run.calibration.timed_program import (
    BF16,
    F16,
    F32,
    Arg,
    Rng,
    TimedProgram,
    float_type,
    one_of,
)

Drawn = tuple[Callable[..., Any], tuple[Arg, ...], tuple[int, ...]]
"""A function, its arguments, and the numbers of those that it is differentiated by."""


def size(rng: Rng, least: float, most: float) -> int:
    """Between two powers of two, as people choose sizes: 1.5 times a power, or near one."""
    number = 2 ** rng.uniform(least, most)
    step = 2 ** max(0, int(np.log2(number)) - int(one_of(rng, (1, 1, 1, 2, 3, 6))))
    return max(1, round(number / step) * step)


def _norm(x: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _head(rng: Rng) -> int:
    return int(one_of(rng, (32, 64, 64, 80, 96, 128, 128)))


def policy(rng: Rng) -> Drawn:
    """Networks of control: small, in float32."""
    rows, seen, acts = size(rng, 5, 16), size(rng, 2, 8), size(rng, 0, 5)
    width, depth = size(rng, 5, 11), int(rng.integers(1, 3))
    act = one_of(rng, (jnp.tanh, jax.nn.relu, jax.nn.silu))

    def fn(x: Any, first: Any, bias: Any, *rest: Any) -> Any:
        x = act(x @ first + bias)
        for weight in rest[:-2]:
            x = act(x @ weight + bias)
        return x @ rest[-2], (x @ rest[-1])[..., 0]

    middle = [Arg((width, width))] * depth
    ends = [Arg((width, acts)), Arg((width, 1))]
    args = (Arg((rows, seen)), Arg((seen, width)), Arg((width,)), *middle, *ends)
    return fn, args, tuple(range(1, len(args)))


def layer(rng: Rng) -> Drawn:
    """Gated and plain layers, parameters in float32 or the type of the products."""
    tokens, width = size(rng, 7, 15), size(rng, 7, 12.5)
    inner = round(width * float(one_of(rng, (2, 2.67, 3.5, 4)))) // 16 * 16
    kept, kind, gated = (
        float_type(rng),
        one_of(rng, (BF16, BF16, BF16, F16, F32)),
        rng.random() < 0.6,
    )

    def fn(x: Any, scale: Any, up: Any, gate: Any, down: Any) -> Any:
        up, gate, down = (weight.astype(kind) for weight in (up, gate, down))
        h = _norm(x) * scale.astype(kind)
        h = jax.nn.silu(h @ gate) * (h @ up) if gated else jax.nn.gelu(h @ up)
        return x + h @ down

    wide = Arg((width, inner), kept)
    args = (Arg((tokens, width), kind), Arg((width,), kept), wide, wide, Arg((inner, width), kept))
    return fn, args, (0, 1, 2, 3, 4) if gated else (0, 1, 2, 4)


def projections(rng: Rng) -> Drawn:
    """Queries, keys, values and the output of attention, with biases or low-rank additions."""
    batch, length, heads, head = size(rng, 0, 6), size(rng, 5, 11), size(rng, 1, 5), _head(rng)
    width, kept, rank = heads * head, float_type(rng), size(rng, 2, 6)

    def fn(x: Any, qkv: Any, bias: Any, a: Any, b: Any, out: Any) -> Any:
        qkv, bias, a, b, out = (it.astype(BF16) for it in (qkv, bias, a, b, out))
        q, k, v = jnp.split(x @ qkv + bias, 3, -1)
        return q * k, (v @ out) + (v @ a) @ b * 2.0

    shapes = ((width, 3 * width), (3 * width,), (width, rank), (rank, width), (width, width))
    args = (Arg((batch, length, width), BF16), *(Arg(shape, kept) for shape in shapes))
    return fn, args, (0, 1, 2, 3, 4, 5)


def attention(rng: Rng) -> Drawn:
    """Scores and their product with values, also with groups of queries."""
    batch, length, heads, head = size(rng, 0, 6), size(rng, 5, 11.5), size(rng, 1, 5), _head(rng)
    groups, kind = int(one_of(rng, (1, 1, 1, 2, 4))), one_of(rng, (BF16, BF16, F32))
    other = one_of(rng, (length, length, size(rng, 5, 11)))

    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(F32) * head**-0.5
        return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, -1).astype(kind), v)

    keys = Arg((batch, other, heads, head), kind)
    numbers = (0, 1, 2) if batch * length * other * heads * groups < 1 << 29 else ()
    return fn, (Arg((batch, length, heads, groups, head), kind), keys, keys), numbers


def decoding(rng: Rng) -> Drawn:
    """One or a few tokens of each sequence: products with few rows, weights also of int8."""
    rows, heads, head = size(rng, 0, 7), size(rng, 2, 6), _head(rng)
    width, inner = heads * head, size(rng, 9, 14)
    int8, words = rng.random() < 0.4, size(rng, 11, 17)

    def fn(x: Any, qkv: Any, gate: Any, up: Any, down: Any, out: Any, scale: Any) -> Any:
        def times(x: Any, weight: Any) -> Any:
            if int8:
                return ((x @ weight.astype(BF16)) * scale[: weight.shape[-1]]).astype(BF16)
            return x @ weight

        h = _norm(x)
        q, k, v = jnp.split(times(h, qkv), (width, width + head * 2), -1)
        x = x + times(jax.nn.silu(times(h, gate)) * times(h, up), down)
        return q, k, v, jnp.argmax((_norm(x) @ out).astype(F32), -1)

    kind = jnp.int8 if int8 else BF16
    shapes = ((width, width + 4 * head), (width, inner), (width, inner), (inner, width))
    weights = tuple(Arg(shape, kind, below=100) for shape in shapes)
    ends = Arg((width, words), BF16), Arg((max(inner, width + 4 * head),), BF16)
    return fn, (Arg((rows, width), BF16), *weights, *ends), ()


def cached(rng: Rng) -> Drawn:
    """Few queries of each sequence with a cache of keys and values."""
    batch, few, heads = size(rng, 0, 6), int(one_of(rng, (1, 1, 1, 4, 5))), size(rng, 0, 4)
    groups, head, length = int(one_of(rng, (1, 2, 3, 4, 8))), _head(rng), size(rng, 8, 13)

    def fn(q: Any, k: Any, v: Any, ends: Any) -> Any:
        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(F32) * head**-0.5
        scores = jnp.where(
            (jnp.arange(length) <= ends[:, None])[:, None, None, None], scores, -1e30
        )
        return jnp.einsum("bkgqs,bskd->bqkgd", jax.nn.softmax(scores, -1).astype(BF16), v)

    keys = Arg((batch, length, heads, head), BF16)
    queries = Arg((batch, few, heads, groups, head), BF16)
    return fn, (queries, keys, keys, Arg((batch,), jnp.int32, below=length)), ()


def experts(rng: Rng) -> Drawn:
    """Batched products of experts, and their router."""
    number, rows = size(rng, 2, 7), size(rng, 5, 11)
    width, inner, kept = size(rng, 7, 11), size(rng, 8, 12), float_type(rng)

    def fn(x: Any, router: Any, up: Any, down: Any) -> Any:
        h = jax.nn.silu(jnp.einsum("ecd,edf->ecf", x, up.astype(BF16)))
        y = jnp.einsum("ecf,efd->ecd", h, down.astype(BF16))
        return y * jax.nn.softmax((x @ router.astype(BF16)).astype(F32), -1).max(-1)[..., None]

    weights = Arg((number, width, inner), kept), Arg((number, inner, width), kept)
    args = Arg((number, rows, width), BF16), Arg((width, number), kept), *weights
    return fn, args, (0, 1, 2, 3)


def chunks(rng: Rng) -> Drawn:
    """Products within the chunks of a state space or of linear attention."""
    batch, steps, heads = size(rng, 0, 3), int(one_of(rng, (32, 64, 128, 256))), size(rng, 1, 5)
    number, wide, states = size(rng, 2, 6), _head(rng), int(one_of(rng, (16, 64, 128)))
    kind = one_of(rng, (BF16, F32))

    def fn(x: Any, a: Any, b: Any, m: Any) -> Any:
        y = jnp.einsum("bzqn,bzsn,bzqsh,bzshp->bzqhp", a, b, m, x)
        state = jnp.einsum("bzsn,bzshp->bzhpn", b, x)
        return y + jnp.einsum("bzqn,bzhpn->bzqhp", a, state)

    seen = Arg((batch, number, steps, states), kind)
    args = Arg((batch, number, steps, heads, wide), kind), seen, seen
    return fn, (*args, Arg((batch, number, steps, steps, heads), kind)), (0, 1, 2, 3)


def logits(rng: Rng) -> Drawn:
    """The loss over a vocabulary, or over classes."""
    rows, width, words = size(rng, 6, 13), size(rng, 6, 11.5), size(rng, 3, 15.5)
    kind = one_of(rng, (BF16, BF16, F32))

    def fn(x: Any, table: Any, labels: Any) -> Any:
        scores = (_norm(x) @ table.astype(kind).T).astype(F32)
        picked = jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]
        return jax.nn.logsumexp(scores, -1) - picked

    table, labels = Arg((words, width)), Arg((rows,), jnp.int32, below=words)
    return fn, (Arg((rows, width), kind), table, labels), (0, 1)


def graph(rng: Rng) -> Drawn:
    """Messages along edges: very many rows, few columns, in float32."""
    nodes, edges, width, out = (
        size(rng, 10, 15),
        size(rng, 12, 17.5),
        size(rng, 4, 8),
        size(rng, 4, 8),
    )

    def fn(x: Any, first: Any, second: Any, a: Any, b: Any) -> Any:
        sent = jax.nn.relu(jnp.concatenate([x[a], x[b]], -1) @ first)
        return jax.nn.relu(jax.ops.segment_sum(sent, b, nodes) @ second)

    ends = Arg((edges,), jnp.int32, below=nodes)
    weights = Arg((2 * width, out)), Arg((out, width))
    return fn, (Arg((nodes, width)), *weights, ends, ends), (0, 1, 2)


def numerics(rng: Rng) -> Drawn:
    """Gram matrices, many small products, and products with few columns, in float32."""
    rows, columns, few = size(rng, 6, 15), size(rng, 2, 9), size(rng, 0, 7)
    many, small, directions = size(rng, 4, 15), size(rng, 1, 6), size(rng, 1, 5)
    points = size(rng, 10, 18)

    def fn(x: Any, y: Any, a: Any, b: Any, e: Any, f: Any) -> Any:
        gram = x @ x.T if rows <= 4096 else x.T @ x
        return (
            gram,
            x @ y,
            x.T @ (x @ y),
            a @ b,
            a @ a.swapaxes(-1, -2),
            jnp.tanh(e @ f),
            e.T @ f[:directions],
        )

    args = (Arg((rows, columns)), Arg((columns, few)), Arg((many, small, small)))
    return (
        fn,
        (*args, Arg((many, small, few)), Arg((directions, directions)), Arg((directions, points))),
        (),
    )


def chains(rng: Rng) -> Drawn:
    """Many models beside each other on the same data, with gradients."""
    many, rows, columns = size(rng, 2, 8), size(rng, 9, 16), size(rng, 2, 8)

    def fn(w: Any, x: Any, y: Any) -> Any:
        scores = jax.vmap(lambda w: x @ w)(w)
        return y * scores - jax.nn.softplus(scores)

    return fn, (Arg((many, columns)), Arg((rows, columns)), Arg((rows,))), (0,)


def plain(rng: Rng) -> Drawn:
    """Products alone, in each layout, with and without a batch."""
    kind, batch = one_of(rng, (BF16, F32)), size(rng, 1, 7)
    m, n, k = (size(rng, 3, 12.5) for _ in range(3))
    p, q, r = (size(rng, 3, 10) for _ in range(3))

    def fn(a: Any, b: Any, c: Any, d: Any, bias: Any, e: Any, f: Any) -> Any:
        forms = a @ b + bias, a @ c.T, d.T @ b, d.T @ c.T
        return *forms, jnp.einsum("bmk,bkn->bmn", e, f), jnp.einsum("bmk,bmn->bkn", e, e)

    shapes = (m, k), (k, n), (n, k), (k, m), (n,), (batch, p, r), (batch, r, q)
    return fn, tuple(Arg(shape, kind) for shape in shapes), ()


def convolutions(rng: Rng) -> Drawn:
    """Two convolutions of images, or of sequences."""
    batch, side, kind = (
        size(rng, 2, 7),
        int(one_of(rng, (7, 14, 28, 32, 56, 64, 112))),
        float_type(rng),
    )
    seen, out, width = size(rng, 1, 8), size(rng, 4, 9), int(one_of(rng, (1, 3, 3, 5, 7)))
    stride = int(one_of(rng, (1, 1, 2)))
    batch = min(batch, max(1, (1 << 27) // (side * side * max(seen, out))))

    def fn(x: Any, first: Any, second: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, first, (stride, stride), "SAME", dimension_numbers=names)
        return lax.conv_general_dilated(
            jax.nn.relu(x), second, (1, 1), "SAME", dimension_numbers=names
        )

    kernels = Arg((width, width, seen, out), kind), Arg((3, 3, out, out), kind)
    return fn, (Arg((batch, side, side, seen), kind), *kernels), (0, 1, 2)


FAMILIES = (policy, layer, attention, decoding, numerics, projections, cached, plain, logits)
FAMILIES += (policy, experts, chunks, graph, chains, plain, convolutions)


def programs(seed: int = 0, *, most_bytes: int = 2 << 30) -> Iterator[tuple[str, TimedProgram]]:
    """Programs without end, of every family in turn, by NAME/NUMBER."""
    for number in count():
        family = FAMILIES[number % len(FAMILIES)]
        fn, args, numbers = family(np.random.default_rng((seed, number)))
        leaves = [arg.struct() for arg in args]
        results = jax.tree.leaves(jax.eval_shape(fn, *leaves))
        if sum(leaf.size * leaf.dtype.itemsize for leaf in (*leaves, *results)) > most_bytes:
            continue
        yield f"{family.__name__}/{number}", TimedProgram(_with_gradient(fn, numbers), args)


def _with_gradient(fn: Callable[..., Any], numbers: tuple[int, ...]) -> Callable[..., Any]:
    """A function with its gradient by some arguments; as it is without any."""
    if not numbers:
        return fn

    def loss(*args: Any) -> Any:
        return sum((leaf.astype(F32) ** 2).mean() for leaf in jax.tree.leaves(fn(*args)))

    return jax.grad(loss, numbers)
