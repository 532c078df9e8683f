"""A fourth zoo: what people train and serve, in sizes that are no powers of two.

It was written after all other changes of its day and before any of its programs ran: no
calibration and no fit has used them.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32, I8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8
Zoo = Iterator[tuple[str, TimedProgram]]


def fourth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, vision, audio, serving, rewards, filters, fields, codebooks),
        *(optimisers, ratings, states, transport, calls),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def program(fn: Any, *args: Any) -> TimedProgram:
    return TimedProgram(fn, args)


def weight(*shape: int, dtype: Any = BF16) -> Arg:
    return Arg(shape, dtype, scale=shape[-2] ** -0.5 if len(shape) > 1 else 1.0)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * scale).astype(x.dtype)


def attend(q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5 + bias
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def language() -> Zoo:
    """A small model with a vocabulary of 50,257, and one with slopes instead of positions."""

    def block(x: Any, qkv: Any, out: Any, up: Any, down: Any, scale: Any) -> Any:
        b, s, d = x.shape
        q, k, v = jnp.split((norm(x, scale) @ qkv).reshape(b, s, 3, -1, 64), 3, 2)
        mask = jnp.where(jnp.tril(jnp.ones((s, s), bool)), 0.0, -1e9)
        x = x + attend(q[:, :, 0], k[:, :, 0], v[:, :, 0], mask).reshape(b, s, d) @ out
        return x + jax.nn.gelu(norm(x, scale) @ up) @ down

    def loss(weights: Any, embedding: Any, tokens: Any) -> Any:
        x = embedding[tokens]
        for _ in range(2):
            x = block(x, *weights)
        logits = (x @ embedding.T).astype(F32)[:, :-1]
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - picked).mean()

    def step(qkv: Any, out: Any, up: Any, down: Any, scale: Any, table: Any, tokens: Any) -> Any:
        return jax.value_and_grad(loss, (0, 1))((qkv, out, up, down, scale), table, tokens)

    d = 768
    given = (weight(d, 3 * d), weight(d, d), weight(d, 4 * d), weight(4 * d, d), weight(d))
    yield "gpt", program(step, *given, weight(50257, d), Arg((6, 700), I32, below=50257))

    def sloped(q: Any, k: Any, v: Any) -> Any:
        slopes = 2.0 ** -jnp.arange(1, q.shape[2] + 1)
        distance = jnp.arange(k.shape[1]) - jnp.arange(q.shape[1])[:, None]
        return attend(q, k, v, slopes[:, None, None] * -jnp.abs(distance))

    yield "slopes", program(sloped, *[Arg((3, 900, 12, 80), BF16)] * 3)


def vision() -> Zoo:
    def patches(images: Any, kernel: Any, mixed: Any, head: Any) -> Any:
        x = lax.conv_general_dilated(images, kernel, (14, 14), "VALID", dimension_numbers=_NHWC)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        return jax.nn.gelu(x @ mixed).mean(1) @ head

    arguments = (weight(14, 14, 3, 384), weight(384, 1152), weight(1152, 1000))
    yield "patches", program(patches, Arg((48, 224, 224, 3), BF16), *arguments)

    def separable(x: Any, deep: Any, point: Any) -> Any:
        def loss(x: Any, deep: Any, point: Any) -> Any:
            y = lax.conv_general_dilated(
                x, deep, (1, 1), "SAME", dimension_numbers=_NHWC, feature_group_count=x.shape[-1]
            )
            return (jax.nn.silu(y) @ point).astype(F32).var()

        return jax.grad(loss, (0, 1, 2))(x, deep, point)

    image = Arg((24, 52, 52, 144), BF16)
    yield "separable", program(separable, image, Arg((3, 3, 1, 144), BF16), weight(144, 240))

    def resized(x: Any) -> Any:
        half = jax.image.resize(x, (x.shape[0], 150, 200, x.shape[-1]), "linear")
        return half - half.mean((1, 2), keepdims=True)

    yield "resized", program(resized, Arg((16, 300, 400, 3)))


_NHWC = ("NHWC", "HWIO", "NHWC")


def audio() -> Zoo:
    def dilated(x: Any, *kernels: Any) -> Any:
        for number, kernel in enumerate(kernels):
            y = lax.conv_general_dilated(
                jnp.pad(x, ((0, 0), (2 << number, 0), (0, 0))), kernel, (1,), "VALID",
                rhs_dilation=(2 << number,), dimension_numbers=("NWC", "WIO", "NWC"),
            )  # fmt: skip
            gate, value = jnp.split(y, 2, -1)
            x = x + jnp.tanh(value) * jax.nn.sigmoid(gate)
        return x

    yield "dilated", program(dilated, Arg((6, 6000, 96)), *[weight(2, 96, 192, dtype=F32)] * 4)

    def filtered(x: Any, taps: Any) -> Any:
        size = 2 * x.shape[-1]
        return jnp.fft.irfft(jnp.fft.rfft(x, size) * jnp.fft.rfft(taps, size), size)[
            ..., : size // 2
        ]

    yield "filtered", program(filtered, Arg((40, 12000)), Arg((12000,)))


def serving() -> Zoo:
    def quantised(x: Any, codes: Any, scales: Any) -> Any:
        low, high = (codes << 4) >> 4, codes >> 4
        weights = jnp.stack([low, high], 1).reshape(-1, codes.shape[-1]).astype(BF16)
        return x @ (weights.reshape(-1, 64, weights.shape[-1]) * scales[:, None]).reshape(
            weights.shape
        )

    codes = Arg((1280, 6912), I8, below=100)
    yield "four_bits", program(quantised, Arg((9, 2560), BF16), codes, Arg((40, 6912), BF16))

    def beams(logits: Any, totals: Any) -> Any:
        scores = totals[..., None] + jax.nn.log_softmax(logits, -1)
        best, index = lax.top_k(scores.reshape(scores.shape[0], -1), 5)
        return best, index // logits.shape[-1], index % logits.shape[-1]

    yield "beams", program(beams, Arg((12, 5, 32001)), Arg((12, 5)))

    def grouped(q: Any, k: Any, v: Any, new: Any, place: Any) -> Any:
        k, v = (lax.dynamic_update_slice(x, new, (0, place[0], 0, 0)) for x in (k, v))
        b, h, d = q.shape
        scores = jnp.einsum("bghd,bkgd->bghk", q.reshape(b, 5, -1, d), k).astype(F32)
        scores = jnp.where(jnp.arange(k.shape[1]) <= place[0], scores * d**-0.5, -1e9)
        out = jnp.einsum("bghk,bkgd->bghd", jax.nn.softmax(scores, -1).astype(v.dtype), v)
        return out.reshape(b, h, d), k, v

    cache = Arg((20, 1800, 5, 96), BF16)
    one = (Arg((20, 1, 5, 96), BF16), Arg((1,), I32, below=1800))
    yield "decoded", program(grouped, Arg((20, 40, 96), BF16), cache, cache, *one)


def rewards() -> Zoo:
    def advantages(rewards: Any, values: Any, done: Any) -> Any:
        def back(carry: Any, row: Any) -> Any:
            reward, value, following, kept = row
            carry = reward + 0.99 * following * kept - value + 0.94 * kept * carry
            return carry, carry

        rows = (rewards, values[:-1], values[1:], 1 - done)
        _, found = lax.scan(back, jnp.zeros_like(values[0]), rows, reverse=True)
        return (found - found.mean()) / (found.std() + 1e-6)

    arguments = (Arg((120, 3000)), Arg((121, 3000)), Arg((120, 3000)))
    yield "advantages", program(advantages, *arguments)

    def clipped(x: Any, w1: Any, w2: Any, action: Any, before: Any, gain: Any) -> Any:
        def loss(w1: Any, w2: Any) -> Any:
            logs = jax.nn.log_softmax(jnp.tanh(x @ w1) @ w2)
            ratio = jnp.exp(jnp.take_along_axis(logs, action[:, None], 1)[:, 0] - before)
            entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
            cut = jnp.clip(ratio, 0.8, 1.2)
            return -jnp.minimum(ratio * gain, cut * gain).mean() - 0.01 * entropy

        return jax.grad(loss, (0, 1))(w1, w2)

    many = (Arg((36000,), I32, below=18), Arg((36000,)), Arg((36000,)))
    weights = (weight(120, 300, dtype=F32), weight(300, 18, dtype=F32))
    yield "clipped", program(clipped, Arg((36000, 120)), *weights, *many)


def filters() -> Zoo:
    def kalman(mean: Any, cov: Any, seen: Any, a: Any) -> Any:
        def move(carry: Any, z: Any) -> Any:
            mean, cov = carry
            mean, cov = mean @ a.T, a @ cov @ a.T + 0.1 * jnp.eye(a.shape[0])
            gain = cov[..., :3] @ jnp.linalg.inv(cov[..., :3, :3] + jnp.eye(3))
            mean = mean + jnp.einsum("bij,bj->bi", gain, z - mean[:, :3])
            return (mean, cov - gain @ cov[..., :3, :]), mean

        return lax.scan(move, (mean, cov), seen)[1]

    arguments = (Arg((700, 6)), Arg((700, 6, 6)), Arg((25, 700, 3)), Arg((6, 6)))
    yield "kalman", program(kalman, *arguments)

    def resampled(x: Any, logs: Any, start: Any) -> Any:
        total = jnp.cumsum(jax.nn.softmax(logs))
        places = (jnp.arange(x.shape[0]) + jax.nn.sigmoid(start[0])) / x.shape[0]
        return x[jnp.searchsorted(total, places)]

    yield "resampled", program(resampled, Arg((150000, 7)), Arg((150000,)), Arg((1,)))


def fields() -> Zoo:
    def advected(u: Any, v: Any, heat: Any) -> Any:
        def one(_: Any, state: Any) -> Any:
            dx, dy = (jnp.roll(state, -1, n) - jnp.roll(state, 1, n) for n in (0, 1))
            around = sum(jnp.roll(state, by, n) for n in (0, 1) for by in (1, -1)) - 4 * state
            return state + 0.01 * around - 0.05 * (u * dx + v * dy)

        return lax.fori_loop(0, 15, one, heat)

    yield "advected", program(advected, *[Arg((900, 1100))] * 3)

    def encoded(points: Any, tables: Any) -> Any:
        found = []
        for level in range(8):
            cell = points * (16 * 1.5**level)
            low = jnp.floor(cell).astype(jnp.uint32)
            part, total = cell - low, 0.0
            for corner in range(8):
                bits = jnp.array([corner & 1, (corner >> 1) & 1, corner >> 2], jnp.uint32)
                mixed = (low + bits) * jnp.array([1, 2654435761, 805459861], jnp.uint32)
                index = (mixed[:, 0] ^ mixed[:, 1] ^ mixed[:, 2]) % tables.shape[1]
                share = jnp.where(bits == 1, part, 1 - part).prod(-1, keepdims=True)
                total = total + share * tables[level][index]
            found.append(total)
        return jnp.concatenate(found, -1)

    yield "encoded", program(encoded, Arg((60000, 3)), Arg((8, 300000, 2)))


def codebooks() -> Zoo:
    def quantised(x: Any, book: Any) -> Any:
        far = (x * x).sum(-1, keepdims=True) - 2 * x @ book.T + (book * book).sum(-1)
        index = far.argmin(-1)
        near = book[index]
        return x + lax.stop_gradient(near - x), index, ((near - x) ** 2).mean()

    yield "vectors", program(quantised, Arg((9000, 72)), Arg((1500, 72)))

    def cosines(blocks: Any, basis: Any, steps: Any) -> Any:
        found = jnp.einsum("ij,bjk,lk->bil", basis, blocks, basis)
        kept = jnp.round(found / steps) * steps
        return jnp.einsum("ji,bjk,kl->bil", basis, kept, basis)

    yield "cosines", program(cosines, Arg((70000, 8, 8)), Arg((8, 8)), Arg((8, 8)))


def optimisers() -> Zoo:
    def orthogonal(weights: Any, gradient: Any, momentum: Any) -> Any:
        momentum = 0.95 * momentum + gradient
        x = momentum.astype(BF16) / (jnp.linalg.norm(momentum) + 1e-7).astype(BF16)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return weights - 0.02 * x.astype(F32), momentum

    yield "orthogonal", program(orthogonal, *[Arg((1000, 2600))] * 3)

    def eight_bits(weights: Any, gradient: Any, codes: Any, scales: Any) -> Any:
        moment = 0.9 * codes.astype(F32) * scales[:, None] + 0.1 * gradient.reshape(codes.shape)
        scales = jnp.abs(moment).max(-1) / 127 + 1e-12
        codes = jnp.round(moment / scales[:, None]).astype(I8)
        return weights - 0.001 * jnp.sign(moment).reshape(weights.shape), codes, scales

    rows = 3100 * 1500 // 250
    moments = (Arg((rows, 250), I8, below=100), Arg((rows,)))
    yield "eight_bits", program(eight_bits, *[Arg((3100, 1500))] * 2, *moments)


def ratings() -> Zoo:
    def crossed(dense: Any, tables: Any, index: Any, bottom: Any, top: Any) -> Any:
        found = jnp.take_along_axis(tables, index.T[..., None], 1)
        parts = jnp.concatenate([(dense @ bottom)[:, None], found.swapaxes(0, 1)], 1)
        pairs = jnp.einsum("bid,bjd->bij", parts, parts)
        rows, columns = jnp.triu_indices(parts.shape[1], 1)
        return jax.nn.sigmoid(jax.nn.relu(pairs[:, rows, columns] @ top).sum(-1))

    index = Arg((5000, 20), I32, below=40000)
    weights = (weight(13, 48, dtype=F32), weight(210, 500, dtype=F32))
    yield "crossed", program(crossed, Arg((5000, 13)), Arg((20, 40000, 48)), index, *weights)


def states() -> Zoo:
    def decayed(q: Any, k: Any, v: Any, decay: Any) -> Any:
        """Attention without a softmax, in chunks, with a state between them."""

        def chunk(state: Any, row: Any) -> Any:
            q, k, v, decay = row
            total = jnp.cumsum(decay, 1)
            inside = jnp.exp(total[:, :, None] - total[:, None])
            inside = jnp.tril(jnp.einsum("hqd,hkd->hqk", q, k) * inside)
            out = inside @ v + jnp.exp(total)[..., None] * (q @ state)
            left = jnp.exp(total[:, -1:] - total)[..., None] * k
            state = jnp.exp(total[:, -1])[:, None, None] * state
            return state + jnp.einsum("hkd,hke->hde", left, v), out

        start = jnp.zeros((q.shape[1], q.shape[-1], v.shape[-1]))
        return lax.scan(chunk, start, (q, k, v, decay))[1]

    rows = Arg((20, 24, 100, 56))
    yield "decayed", program(decayed, rows, rows, rows, Arg((20, 24, 100), scale=0.01))


def transport() -> Zoo:
    def sinkhorn(x: Any, y: Any) -> Any:
        cost = ((x[:, None] - y[None]) ** 2).sum(-1)

        def one(_: Any, pair: Any) -> Any:
            f, g = pair
            f = -0.1 * jax.nn.logsumexp((g[None] - cost) / 0.1, 1)
            return f, -0.1 * jax.nn.logsumexp((f[:, None] - cost) / 0.1, 0)

        f, g = lax.fori_loop(0, 12, one, (jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0])))
        return (jnp.exp((f[:, None] + g[None] - cost) / 0.1) * cost).sum()

    yield "sinkhorn", program(sinkhorn, Arg((1900, 3)), Arg((2300, 3)))


def calls() -> Zoo:
    """Labels that are aligned with frames, by forward probabilities in the log space."""

    def aligned(logits: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(logits, -1)
        picked = jnp.take_along_axis(logs, labels[None], -1)

        def frame(alpha: Any, row: Any) -> Any:
            before = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=-1e9)[:, :-1]
            alpha = jnp.logaddexp(alpha, before) + row
            return alpha, None

        start = jnp.full(labels.shape, -1e9).at[:, 0].set(picked[0, :, 0])
        return -lax.scan(frame, start, picked[1:])[0][:, -1].mean()

    loss = jax.grad(aligned)
    yield "aligned", program(loss, Arg((90, 28, 130)), Arg((28, 40), I32, below=130))
