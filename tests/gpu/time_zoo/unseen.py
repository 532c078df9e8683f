"""A second zoo, written after the first one had been looked at: only for evaluation.

No calibration and no fit has used these programs, and none of their kernels was looked at while the
rules for kernels were written.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Zoo = Iterator[tuple[str, TimedProgram]]


def unseen_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(adapters, adversarial, alignment, classical, compression, contrastive, decoding),
        *(flows, images, markov, matrices, meshes, quantised, recommendation, sequences, tuned),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def program(fn: Callable[..., Any], *args: Any) -> TimedProgram:
    return TimedProgram(fn, args)


def mlp(ws: list[Any], x: Any) -> Any:
    for w in ws[:-1]:
        x = jax.nn.relu(x @ w)
    return x @ ws[-1]


def widths(sizes: tuple[int, ...], dtype: Any = F32) -> list[Arg]:
    return [Arg(pair, dtype, scale=0.05) for pair in itertools.pairwise(sizes)]


def adapters() -> Zoo:
    """Low-rank adapters beside frozen products."""

    def block(lora: Any, w: Any, x: Any) -> Any:
        for (a, b), frozen in zip(lora, w, strict=True):
            x = jax.nn.silu(x @ frozen + (x @ a) @ b) + x
        return (x.astype(F32) ** 2).mean()

    for width, rank in ((1024, 8), (2048, 32)):
        lora = [(Arg((width, rank), BF16, 0.02), Arg((rank, width), BF16, 0.02))] * 4
        frozen = [Arg((width, width), BF16, 0.02)] * 4
        x = Arg((2048, width), BF16)
        yield f"train_{width}_rank_{rank}", program(jax.value_and_grad(block), lora, frozen, x)


def adversarial() -> Zoo:
    def generate(ws: Any, z: Any) -> Any:
        x = (z @ ws[0]).reshape(-1, 8, 8, 128)
        for w in ws[1:]:
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            x = lax.conv_general_dilated(
                jax.nn.leaky_relu(x), w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return jnp.tanh(x)

    def judge(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jax.nn.leaky_relu(
                lax.conv_general_dilated(
                    x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        return x.mean((1, 2, 3))

    gs = [
        Arg((64, 8192), BF16, 0.05),
        Arg((3, 3, 128, 64), BF16, 0.05),
        Arg((3, 3, 64, 3), BF16, 0.05),
    ]
    ds = [Arg((4, 4, 3, 64), BF16, 0.05), Arg((4, 4, 64, 128), BF16, 0.05)]
    z, real = Arg((64, 64), BF16), Arg((64, 32, 32, 3), BF16)

    def generator_loss(gs: Any, ds: Any, z: Any) -> Any:
        return jax.nn.softplus(-judge(ds, generate(gs, z)).astype(F32)).mean()

    def judge_loss(ds: Any, gs: Any, z: Any, real: Any) -> Any:
        fake = judge(ds, generate(gs, z)).astype(F32)
        return (jax.nn.softplus(fake) + jax.nn.softplus(-judge(ds, real).astype(F32))).mean()

    yield "generator", program(jax.grad(generator_loss), gs, ds, z)
    yield "judge", program(jax.grad(judge_loss), ds, gs, z, real)


def alignment() -> Zoo:
    def distance(costs: Any) -> Any:
        """Dynamic time warping along diagonals of a square of costs."""

        def step(state: Any, row: Any) -> Any:
            before, last = state
            best = jnp.minimum(jnp.minimum(last, jnp.roll(last, 1, 1)), jnp.roll(before, 1, 1))
            now = row + best
            return (last, now), now[:, 0]

        first = jnp.zeros(costs.shape[1:])
        return lax.scan(step, (first, first), costs)[1]

    yield "warping", program(distance, Arg((256, 64, 256)))

    def transport(x: Any, y: Any) -> Any:
        cost = ((x[:, None] - y[None]) ** 2).sum(-1)
        f, g = jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0])
        for _ in range(8):
            f = -jax.nn.logsumexp((g[None] - cost) / 0.5, 1) * 0.5
            g = -jax.nn.logsumexp((f[:, None] - cost) / 0.5, 0) * 0.5
        return (jnp.exp((f[:, None] + g[None] - cost) / 0.5) * cost).sum()

    yield "transport", program(transport, Arg((1500, 8)), Arg((1200, 8)))
    yield "transport_gradient", program(jax.grad(transport), Arg((512, 8)), Arg((512, 8)))


def classical() -> Zoo:
    def clusters(x: Any, centres: Any) -> Any:
        def step(_: Any, centres: Any) -> Any:
            nearest = jnp.argmin(
                (x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)[None], 1
            )
            sums = jax.ops.segment_sum(x, nearest, centres.shape[0])
            counts = jax.ops.segment_sum(jnp.ones(x.shape[0]), nearest, centres.shape[0])
            return sums / jnp.maximum(counts, 1)[:, None]

        return lax.fori_loop(0, 10, step, centres)

    yield "k_means", program(clusters, Arg((50000, 32)), Arg((100, 32)))

    def mixture(x: Any, means: Any, scales: Any) -> Any:
        log = -0.5 * (((x[:, None] - means[None]) / scales[None]) ** 2).sum(-1) - jnp.log(
            scales
        ).sum(-1)
        weights = jax.nn.softmax(log, 1)
        total = weights.sum(0)[:, None]
        centred = (x[:, None] - means[None]) ** 2
        return weights.T @ x / total, jnp.sqrt((weights[..., None] * centred).sum(0) / total)

    yield (
        "mixture",
        program(mixture, Arg((20000, 16)), Arg((24, 16)), Arg((24, 16), identity=0.0, scale=0.1)),
    )
    yield (
        "components",
        program(
            lambda x: jnp.linalg.eigh((x - x.mean(0)).T @ (x - x.mean(0)) / x.shape[0]),
            Arg((10000, 200)),
        ),
    )

    def neighbours(x: Any, y: Any, labels: Any) -> Any:
        near = lax.top_k(2 * x @ y.T - (y**2).sum(1)[None], 15)[1]
        return jax.nn.one_hot(labels[near], 10).sum(1).argmax(1)

    args = Arg((2000, 64)), Arg((20000, 64)), Arg((20000,), I32, below=10)
    yield "neighbours", program(neighbours, *args)


def compression() -> Zoo:
    def cosines(x: Any) -> Any:
        n = jnp.arange(8)
        basis = jnp.cos(jnp.pi * (n[:, None] + 0.5) * n[None] / 8)
        blocks = x.reshape(-1, x.shape[1] // 8, 8, x.shape[2] // 8, 8)
        coefficients = jnp.einsum("biujv,uk,vl->bijkl", blocks, basis, basis)
        return jnp.round(coefficients * 4) / 4

    yield "cosines", program(cosines, Arg((16, 256, 256)))

    def wavelets(x: Any) -> Any:
        results = []
        for _ in range(5):
            even, odd = x[:, ::2], x[:, 1::2]
            results.append((even - odd) * 0.7071)
            x = (even + odd) * 0.7071
        return jnp.concatenate([x, *results[::-1]], 1)

    yield "wavelets", program(wavelets, Arg((64, 1 << 15)))

    def codes(x: Any, book: Any) -> Any:
        def loss(x: Any, book: Any) -> Any:
            near = jnp.argmin((book**2).sum(1)[None] - 2 * x @ book.T, 1)
            chosen = book[near]
            return ((lax.stop_gradient(x) - chosen) ** 2).mean() + 0.25 * (
                (x - lax.stop_gradient(chosen)) ** 2
            ).mean()

        return jax.value_and_grad(loss, (0, 1))(x, book)

    yield "codes", program(codes, Arg((16384, 64)), Arg((1024, 64)))


def contrastive() -> Zoo:
    def loss(ws: Any, vs: Any, x: Any, y: Any) -> Any:
        a, b = mlp(ws, x).astype(F32), mlp(vs, y).astype(F32)
        a = a / jnp.linalg.norm(a, axis=1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=1, keepdims=True)
        scores = 10 * a @ b.T
        same = jnp.diagonal(scores)
        return (jax.nn.logsumexp(scores, 0) + jax.nn.logsumexp(scores, 1) - 2 * same).mean()

    for batch, dtype, tag in ((1024, F32, "f32"), (4096, BF16, "bf16")):
        ws, vs = widths((512, 1024, 256), dtype), widths((768, 1024, 256), dtype)
        x, y = Arg((batch, 512), dtype), Arg((batch, 768), dtype)
        yield f"pairs_{tag}_{batch}", program(jax.value_and_grad(loss, (0, 1)), ws, vs, x, y)


def decoding() -> Zoo:
    def beams(logits: Any, scores: Any, tokens: Any) -> Any:
        total = scores[..., None] + jax.nn.log_softmax(logits)
        best, index = lax.top_k(total.reshape(total.shape[0], -1), scores.shape[1])
        parent, token = index // logits.shape[-1], index % logits.shape[-1]
        kept = jnp.take_along_axis(tokens, parent[..., None], 1)
        return best, jnp.concatenate([kept, token[..., None]], -1)

    yield (
        "beams",
        program(beams, Arg((16, 4, 32000)), Arg((16, 4)), Arg((16, 4, 64), I32, below=32000)),
    )

    def window(q: Any, k: Any, v: Any, position: Any) -> Any:
        k = lax.dynamic_update_slice(k, q[:, :, None] * 0.5, (0, 0, position, 0))
        scores = jnp.einsum("bhd,bhld->bhl", q, k).astype(F32) * 0.125
        slots = jnp.arange(k.shape[2])
        scores = jnp.where(slots <= position, scores, -1e9)
        return jnp.einsum("bhl,bhld->bhd", jax.nn.softmax(scores).astype(q.dtype), v), k

    cache = Arg((8, 16, 4096, 64), BF16)
    yield (
        "window",
        program(window, Arg((8, 16, 64), BF16), cache, cache, Arg((), I32, below=4000)),
    )

    def verified(draft: Any, target: Any, tokens: Any, uniform: Any) -> Any:
        p, q = jax.nn.softmax(target), jax.nn.softmax(draft)
        chosen = tokens[..., None]
        ratio = jnp.take_along_axis(p, chosen, -1) / jnp.take_along_axis(q, chosen, -1)
        taken = jnp.cumprod((uniform < ratio[..., 0]).astype(I32), 1)
        rest = jnp.maximum(p - q, 0)
        return taken.sum(1), (rest / (rest.sum(-1, keepdims=True) + 1e-9)).argmax(-1)

    logits = Arg((8, 5, 50000))
    yield (
        "verified",
        program(verified, logits, logits, Arg((8, 5), I32, below=50000), Arg((8, 5))),
    )


def flows() -> Zoo:
    def coupled(layers: Any, x: Any) -> Any:
        log = jnp.zeros(x.shape[0])
        for ws in layers:
            a, b = jnp.split(x, 2, 1)
            scale, shift = jnp.split(mlp(ws, a), 2, 1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([b * jnp.exp(scale) + shift, a], 1)
            log = log + scale.sum(1)
        return (0.5 * (x**2).sum(1) - log).mean()

    layers = [widths((32, 256, 64))] * 4
    yield "coupling", program(jax.value_and_grad(coupled), layers, Arg((8192, 64)))

    def integrated(ws: Any, x: Any) -> Any:
        def slope(x: Any) -> Any:
            return jnp.tanh(mlp(ws, x))

        def step(_: Any, x: Any) -> Any:
            k1 = slope(x)
            k2 = slope(x + 0.05 * k1)
            k3 = slope(x + 0.05 * k2)
            k4 = slope(x + 0.1 * k3)
            return x + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        return lax.fori_loop(0, 10, step, x)

    yield "runge_kutta", program(integrated, widths((64, 256, 64)), Arg((4096, 64)))


def images() -> Zoo:
    def bilateral(x: Any) -> Any:
        total, weights = jnp.zeros_like(x), jnp.zeros_like(x)
        wide = jnp.pad(x, ((0, 0), (2, 2), (2, 2)), mode="edge")
        for dy in range(5):
            for dx in range(5):
                moved = wide[:, dy : dy + x.shape[1], dx : dx + x.shape[2]]
                w = jnp.exp(-((moved - x) ** 2) * 4 - ((dy - 2) ** 2 + (dx - 2) ** 2) * 0.1)
                total, weights = total + w * moved, weights + w
        return total / weights

    yield "bilateral", program(bilateral, Arg((4, 512, 512)))

    def warped(image: Any, flow: Any) -> Any:
        rows, columns = jnp.mgrid[: image.shape[0], : image.shape[1]]
        places = [rows + flow[..., 0] * 8, columns + flow[..., 1] * 8]
        return jax.scipy.ndimage.map_coordinates(image, places, order=1, mode="nearest")

    yield "warped", program(warped, Arg((1024, 1024)), Arg((1024, 1024, 2)))

    def block(ws: Any, x: Any) -> Any:
        depth, up, down = ws
        y = lax.conv_general_dilated(
            x,
            depth,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
        )
        wide = y.astype(F32)
        wide = (wide - wide.mean(-1, keepdims=True)) * lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)
        return x + jax.nn.gelu(wide.astype(x.dtype) @ up) @ down

    ws = (
        Arg((7, 7, 1, 96), BF16, 0.05),
        Arg((96, 384), BF16, 0.05),
        Arg((384, 96), BF16, 0.05),
    )
    x = Arg((16, 56, 56, 96), BF16)
    yield "convolution_block", program(block, ws, x)
    yield (
        "convolution_block_gradient",
        program(jax.grad(lambda w, x: (block(w, x).astype(F32) ** 2).sum()), ws, x),
    )


def markov() -> Zoo:
    def forward(log_a: Any, log_b: Any) -> Any:
        def step(alpha: Any, emitted: Any) -> Any:
            alpha = jax.nn.logsumexp(alpha[:, :, None] + log_a[None], 1) + emitted
            return alpha, None

        return jax.nn.logsumexp(lax.scan(step, log_b[0], log_b[1:])[0], 1).sum()

    args = Arg((64, 64)), Arg((100, 32, 64))
    yield "hidden_states", program(forward, *args)
    yield "hidden_states_gradient", program(jax.grad(forward, (0, 1)), *args)

    def spins(key: Any, grid: Any) -> Any:
        board = (jnp.indices(grid.shape).sum(0) % 2).astype(F32)

        def step(n: Any, grid: Any) -> Any:
            around = sum(jnp.roll(grid, s, a) for a in (0, 1) for s in (1, -1))
            flips = jax.random.uniform(jax.random.fold_in(key, n), grid.shape) < jnp.exp(
                -0.8 * grid * around
            )
            return jnp.where(flips & (board == n % 2), -grid, grid)

        return lax.fori_loop(0, 20, step, grid)

    yield "spins", program(spins, Arg((2,), jnp.uint32, below=1 << 30), Arg((1024, 1024)))


def matrices() -> Zoo:
    def orthogonal(g: Any) -> Any:
        x = g / (jnp.linalg.norm(g) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4 * x + (-4.8 * a + 2.0 * a @ a) @ x
        return x

    yield "newton_schulz_f32", program(orthogonal, Arg((768, 3072)))
    yield "newton_schulz_bf16", program(orthogonal, Arg((1024, 4096), BF16))
    yield (
        "exponential",
        program(jax.vmap(jax.scipy.linalg.expm), Arg((64, 24, 24), scale=0.1)),
    )

    def likelihood(x: Any, y: Any) -> Any:
        k = jnp.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1)) + 0.5 * jnp.eye(x.shape[0])
        factor = jnp.linalg.cholesky(k)
        solved = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * (solved**2).sum() + jnp.log(jnp.diagonal(factor)).sum()

    yield "likelihood_gradient", program(jax.grad(likelihood), Arg((1000, 4)), Arg((1000, 1)))


def meshes() -> Zoo:
    def energy(points: Any, faces: Any) -> Any:
        a, b, c = points[faces[:, 0]], points[faces[:, 1]], points[faces[:, 2]]
        return jnp.sqrt((jnp.cross(b - a, c - a) ** 2).sum(1) + 1e-9).sum()

    faces = Arg((200000, 3), I32, below=100000)
    yield "area_gradient", program(jax.grad(energy), Arg((100000, 3)), faces)

    def deposited(positions: Any, charge: Any) -> Any:
        grid = jnp.zeros((256, 256))
        place = (jax.nn.sigmoid(positions) * 254).astype(F32)
        corner = jnp.floor(place).astype(I32)
        part = place - corner
        for dy in (0, 1):
            for dx in (0, 1):
                w = jnp.abs(1 - dy - part[:, 0]) * jnp.abs(1 - dx - part[:, 1])
                grid = grid.at[corner[:, 0] + dy, corner[:, 1] + dx].add(charge * w)
        return jnp.fft.irfft2(jnp.fft.rfft2(grid) * 0.1, (256, 256))

    yield "particles", program(deposited, Arg((200000, 2)), Arg((200000,)))


def quantised() -> Zoo:
    def product(x: Any, w: Any, scale: Any) -> Any:
        top = jnp.abs(x.astype(F32)).max(1, keepdims=True) / 127
        q = jnp.round(x.astype(F32) / top).astype(jnp.int8)
        y = jnp.matmul(q, w, preferred_element_type=I32)
        return (y.astype(F32) * top * scale).astype(x.dtype)

    w, scale = Arg((2048, 2048), jnp.int8, below=100), Arg((2048,))
    yield "int8_rows", program(product, Arg((1024, 2048), BF16), w, scale)

    def unpacked(x: Any, w: Any, scale: Any) -> Any:
        low, high = (w & 15).astype(BF16) - 8, (w >> 4).astype(BF16)
        wide = jnp.stack([low, high], 1).reshape(-1, w.shape[1]) * scale
        return x @ wide

    packed = Arg((1024, 4096), jnp.int8, below=100)
    yield "int4_weights", program(unpacked, Arg((16, 2048), BF16), packed, Arg((4096,), BF16))


def recommendation() -> Zoo:
    def score(tables: Any, ws: Any, dense: Any, index: Any) -> Any:
        rows = [t[i].sum(1) for t, i in zip(tables, index, strict=True)]
        x = jnp.stack([mlp(ws[:2], dense), *rows], 1)
        pairs = jnp.einsum("bid,bjd->bij", x, x).reshape(x.shape[0], -1)
        return mlp(ws[2:], jnp.concatenate([pairs, x[:, 0]], 1))[:, 0]

    def loss(tables: Any, ws: Any, dense: Any, index: Any) -> Any:
        return jax.nn.softplus(score(tables, ws, dense, index)).mean()

    tables = [Arg((100000, 32), scale=0.1)] * 7
    ws = [*widths((16, 128, 32)), *widths((96, 256, 1))]
    index = [Arg((4096, 4), I32, below=100000)] * 7
    args = tables, ws, Arg((4096, 16)), index
    yield "scores", program(score, *args)
    yield "gradient", program(jax.grad(loss, (0, 1)), *args)


def sequences() -> Zoo:
    def retained(q: Any, k: Any, v: Any) -> Any:
        def step(state: Any, qkv: Any) -> Any:
            q, k, v = qkv
            state = 0.95 * state + jnp.einsum("bhd,bhe->bhde", k, v)
            return state, jnp.einsum("bhd,bhde->bhe", q, state)

        first = jnp.zeros((q.shape[1], q.shape[2], q.shape[3], v.shape[3]))
        return lax.scan(step, first, (q, k, v))[1]

    x = Arg((64, 4, 8, 32))
    yield "retained", program(retained, x, x, x)

    def local(q: Any, k: Any, v: Any) -> Any:
        chunks = [t.reshape(t.shape[0], -1, 128, t.shape[2], t.shape[3]) for t in (q, k, v)]
        q, k, v = chunks
        k = jnp.concatenate([jnp.roll(k, 1, 1), k], 2)
        v = jnp.concatenate([jnp.roll(v, 1, 1), v], 2)
        scores = jnp.einsum("bcqhd,bckhd->bchqk", q, k).astype(F32) * 0.125
        weights = jax.nn.softmax(scores).astype(q.dtype)
        return jnp.einsum("bchqk,bckhd->bcqhd", weights, v)

    x = Arg((4, 2048, 8, 64), BF16)
    yield "local_attention", program(local, x, x, x)
    loss = jax.grad(lambda *t: (local(*t).astype(F32) ** 2).sum(), (0, 1, 2))
    yield "local_attention_gradient", program(loss, x, x, x)

    def dilated(ws: Any, x: Any) -> Any:
        for level, w in enumerate(ws):
            y = lax.conv_general_dilated(
                x,
                w,
                (1,),
                [(2 << level, 0)],
                rhs_dilation=(1 << level,),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            x = x + jax.nn.relu(y)
        return x

    ws = [Arg((3, 64, 64), scale=0.05)] * 5
    yield "dilated", program(dilated, ws, Arg((16, 2048, 64)))


def tuned() -> Zoo:
    """Whole training steps with optimizers."""
    optimizers = {
        "adafactor": optax.adafactor(1e-3),
        "adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    }
    for name, optimizer in optimizers.items():
        sizes = (784, 1024, 1024, 10)
        structs = [jax.ShapeDtypeStruct(p, F32) for p in itertools.pairwise(sizes)]
        state = jax.eval_shape(optimizer.init, structs)

        def step(ws: Any, state: Any, x: Any, y: Any, o: Any = optimizer) -> Any:
            def loss(ws: Any) -> Any:
                return optax.softmax_cross_entropy_with_integer_labels(mlp(ws, x), y).mean()

            value, gradient = jax.value_and_grad(loss)(ws)
            updates, state = o.update(gradient, state, ws)
            return optax.apply_updates(ws, updates), state, value

        moments = jax.tree.map(lambda s: Arg(s.shape, s.dtype, scale=0.0, below=1), state)
        args = widths(sizes), moments, Arg((512, 784)), Arg((512,), I32, below=10)
        yield f"{name}_step", program(step, *args)
