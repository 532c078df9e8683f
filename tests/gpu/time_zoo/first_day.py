"""Fourteen programs that no fit has seen: seven steps of machine learning, seven of numerics.

Written without a look at a calibration. All inputs are finite, and stay so in a loop.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.ndimage import map_coordinates

from xlapipe.run.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Tree = Any


def programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    return dict([*learning(), *numerics()])


def rms(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def cross_entropy(logits: Any, labels: Any) -> Any:
    wide = logits.astype(F32)
    chosen = jnp.take_along_axis(wide, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(wide, -1) - chosen).mean()


def adam(params: Tree, state: Tree, gradients: Tree, rate: float = 1e-3) -> tuple[Tree, Tree]:
    """Adam after clipping by the global norm; state is (first, second, count)."""
    norm = jnp.sqrt(sum((leaf * leaf).sum() for leaf in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda leaf: leaf / jnp.maximum(1.0, norm), gradients)
    first, second, count = state
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, gradients)
    count = count + 1
    size = rate * jnp.sqrt(1 - 0.95**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, m, v: p - size * m / (jnp.sqrt(jnp.abs(v)) + 1e-6), params, first, second
    )
    return params, (first, second, count)


def trained(loss: Callable[..., Any], params: Tree, *batch: Arg) -> TimedProgram:
    def step(carry: Tree, *batch: Any) -> tuple[Tree, Any]:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return adam(params, state, gradients), value

    zeros = jax.tree.map(lambda leaf: Arg(leaf.shape, leaf.dtype, scale=0.0), params)
    return TimedProgram(step, ((params, (zeros, zeros, Arg((), F32, scale=0.0))), *batch), True)


def learning() -> Iterator[tuple[str, TimedProgram]]:
    # Products of 16,384 rows, forward and backward.
    def wide_loss(params: Tree, x: Any) -> Any:
        for w in params["layers"]:
            x = rms(x + jax.nn.silu(x @ w.astype(BF16)), 1.0)
        return ((x @ params["out"].astype(BF16)).astype(F32) ** 2).mean()

    layers = [Arg((8192, 8192), F32, scale=0.01)] * 3
    params = {"layers": layers, "out": Arg((8192, 1024), F32, scale=0.01)}
    yield "learning/wide_mlp", trained(wide_loss, params, Arg((16384, 8192), BF16))

    # A language model with grouped queries.
    width, heads, groups, hidden, depth, vocab = 1536, 12, 4, 4096, 5, 32000
    batch, length, head = 8, 2048, 128

    def turned(x: Any) -> Any:
        half = x.shape[-1] // 2
        angles = jnp.arange(x.shape[1], dtype=F32)[:, None, None] * 1e4 ** (
            -jnp.arange(half) / half
        )
        a, b = x[..., :half].astype(F32), x[..., half:].astype(F32)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    def lm_loss(params: Tree, tokens: Any) -> Any:
        p = jax.tree.map(lambda leaf: leaf.astype(BF16), params)
        x = p["emb"][tokens[:, :-1]]
        for layer in p["layers"]:
            y = rms(x, layer["n1"])
            q = turned((y @ layer["q"]).reshape(batch, length, heads, head))
            k = turned((y @ layer["k"]).reshape(batch, length, groups, head))
            v = (y @ layer["v"]).reshape(batch, length, groups, head)
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + mixed.reshape(batch, length, width) @ layer["o"]
            y = rms(x, layer["n2"])
            x = x + (jax.nn.silu(y @ layer["g"]) * (y @ layer["u"])) @ layer["d"]
        return cross_entropy(rms(x, p["norm"]) @ p["emb"].T, tokens[:, 1:])

    shapes = {"q": (width, width), "k": (width, groups * head), "v": (width, groups * head)}
    shapes |= {"o": (width, width), "g": (width, hidden), "u": (width, hidden)}
    shapes |= {"d": (hidden, width), "n1": (width,), "n2": (width,)}
    layer = {name: Arg(shape, F32, scale=0.02) for name, shape in shapes.items()}
    params = {
        "emb": Arg((vocab, width), F32, scale=0.02),
        "norm": Arg((width,), F32),
        "layers": [layer] * depth,
    }
    tokens = Arg((batch, length + 1), I32, below=vocab)
    yield "learning/lm_train", trained(lm_loss, params, tokens)

    # Two critics and an actor of 256 x 256, in float32.
    def mlp(p: Tree, x: Any) -> Any:
        x = jax.nn.relu(x @ p["a"])
        return jax.nn.relu(x @ p["b"]) @ p["c"]

    def sac(params: Tree, states: Any, actions: Any, rewards: Any, nexts: Any, key: Any) -> Any:
        noise = jax.random.normal(jax.random.wrap_key_data(key), (states.shape[0], 8))
        ahead = jnp.tanh(mlp(params["actor"], nexts) + 0.1 * noise)
        joined = jnp.concatenate([nexts, ahead], -1)
        value = jnp.minimum(mlp(params["q1"], joined), mlp(params["q2"], joined))
        target = lax.stop_gradient(rewards + 0.99 * value[:, 0])
        now = jnp.concatenate([states, actions], -1)
        critic = sum(((mlp(params[q], now)[:, 0] - target) ** 2).mean() for q in ("q1", "q2"))
        acted = jnp.concatenate([states, jnp.tanh(mlp(params["actor"], states))], -1)
        return critic - mlp(lax.stop_gradient(params["q1"]), acted).mean()

    def three(inputs: int, outputs: int) -> Tree:
        sizes = {"a": (inputs, 256), "b": (256, 256), "c": (256, outputs)}
        return {name: Arg(shape, F32, scale=0.06) for name, shape in sizes.items()}

    params = {"actor": three(64, 8), "q1": three(72, 1), "q2": three(72, 1)}
    rows, key = 8192, Arg((2,), jnp.uint32, below=1 << 30)
    batch_args = (Arg((rows, 64)), Arg((rows, 8)), Arg((rows,)), Arg((rows, 64)), key)
    yield "learning/actor_critic", trained(sac, params, *batch_args)

    # A convolutional network with skips, up and down, in bfloat16.
    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(
            x, w.astype(BF16), (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def unet_loss(p: Tree, x: Any, y: Any) -> Any:
        a = jax.nn.silu(conv(x, p["in"]))
        b = jax.nn.silu(conv(a, p["down"], 2))
        for w in p["mid"]:
            b = b + jax.nn.silu(conv(b, w))
        up = jax.image.resize(b, (*a.shape[:3], b.shape[3]), "nearest")
        out = conv(jnp.concatenate([a, up], -1), p["out"])
        return ((out - y).astype(F32) ** 2).mean()

    params = {
        "in": Arg((3, 3, 4, 64), F32, scale=0.1),
        "down": Arg((3, 3, 64, 128), F32, scale=0.04),
        "mid": [Arg((3, 3, 128, 128), F32, scale=0.03)] * 4,
        "out": Arg((3, 3, 192, 4), F32, scale=0.02),
    }
    image = Arg((32, 96, 96, 4), BF16)
    yield "learning/unet", trained(unet_loss, params, image, image)

    # One token of 32 sequences, with a cache that is updated in place.
    def decode(cache: Tree, params: Tree, tokens: Any, position: Any) -> Any:
        x, kept = params["emb"][tokens], []
        for p, (old_keys, old_values) in zip(params["layers"], cache, strict=True):
            y = rms(x, p["n"])
            q = (y @ p["q"]).reshape(32, 4, 4, 128)
            k, v = ((y @ p[name]).reshape(32, 1, 4, 128) for name in "kv")
            keys = lax.dynamic_update_slice(old_keys, k, (0, position, 0, 0))
            values = lax.dynamic_update_slice(old_values, v, (0, position, 0, 0))
            scores = jnp.einsum("bghd,btgd->bght", q, keys).astype(F32) / 128**0.5
            seen = jnp.arange(keys.shape[1]) <= position
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e30)).astype(BF16)
            x = x + jnp.einsum("bght,btgd->bghd", weights, values).reshape(32, 2048) @ p["o"]
            y = rms(x, p["n"])
            x = x + jax.nn.gelu(y @ p["u"]) @ p["d"]
            kept.append((keys, values))
        logits = (x @ params["emb"].T).astype(F32)
        return kept, lax.top_k(logits, 40)

    shapes = {"q": (2048, 2048), "k": (2048, 512), "v": (2048, 512), "o": (2048, 2048)}
    shapes |= {"u": (2048, 8192), "d": (8192, 2048), "n": (2048,)}
    layer = {name: Arg(shape, BF16, scale=0.02) for name, shape in shapes.items()}
    params = {"emb": Arg((50304, 2048), BF16, scale=0.02), "layers": [layer] * 6}
    cache = [(Arg((32, 2048, 4, 128), BF16),) * 2] * 6
    args = (cache, params, Arg((32,), I32, below=50304), Arg((), I32, below=1500))
    yield "learning/decode", TimedProgram(decode, args, True)

    # A recurrent network over 96 steps.
    def gru_loss(p: Tree, x: Any, y: Any) -> Any:
        def one(h: Any, x: Any) -> Any:
            gates = jax.nn.sigmoid(x @ p["gx"] + h @ p["gh"])
            z, r = jnp.split(gates, 2, -1)
            h = (1 - z) * h + z * jnp.tanh(x @ p["cx"] + (r * h) @ p["ch"])
            return h, None

        h, _ = lax.scan(one, jnp.zeros((256, 512)), x)
        return cross_entropy(h @ p["out"], y)

    shapes = {"gx": (128, 1024), "gh": (512, 1024), "cx": (128, 512), "ch": (512, 512)}
    params = {name: Arg(shape, F32, scale=0.04) for name, shape in shapes.items()}
    params["out"] = Arg((512, 1000), F32, scale=0.04)
    series, labels = Arg((96, 256, 128)), Arg((256,), I32, below=1000)
    yield "learning/gru", trained(gru_loss, params, series, labels)

    # Two towers whose images and texts are compared with each other.
    def towers(p: Tree, images: Any, tokens: Any) -> Any:
        def tower(p: Tree, x: Any) -> Any:
            for w in p["layers"]:
                x = x + jax.nn.gelu(rms(x, 1.0) @ w["u"].astype(BF16)) @ w["d"].astype(BF16)
            x = (x @ p["out"].astype(BF16)).astype(F32)
            return x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)

        a = tower(p["image"], images)
        b = tower(p["text"], p["emb"][tokens].mean(1).astype(BF16))
        logits = 20.0 * a @ b.T
        labels = jnp.arange(a.shape[0])
        return cross_entropy(logits, labels) + cross_entropy(logits.T, labels)

    block = {"u": Arg((768, 3072), F32, scale=0.03), "d": Arg((3072, 768), F32, scale=0.02)}
    one = {"layers": [block] * 4, "out": Arg((768, 512), F32, scale=0.03)}
    params = {"image": one, "text": one, "emb": Arg((30000, 768), F32, scale=0.5)}
    args = (Arg((4096, 768), BF16), Arg((4096, 32), I32, below=30000))
    yield "learning/two_towers", trained(towers, params, *args)


def numerics() -> Iterator[tuple[str, TimedProgram]]:
    # Maxwell's equations on a staggered grid: six fields of 160 x 160 x 160, eight steps.
    def maxwell(fields: Any) -> Any:
        def curl(a: Any, b: Any, c: Any, shift: int) -> Any:
            d = lambda f, axis: shift * (jnp.roll(f, -shift, axis) - f)  # noqa: E731
            return d(c, 1) - d(b, 2), d(a, 2) - d(c, 0), d(b, 0) - d(a, 1)

        def one(fields: Any, _: Any) -> Any:
            ex, ey, ez, hx, hy, hz = fields
            cx, cy, cz = curl(ex, ey, ez, 1)
            hx, hy, hz = hx - 0.3 * cx, hy - 0.3 * cy, hz - 0.3 * cz
            cx, cy, cz = curl(hx, hy, hz, -1)
            return (ex + 0.3 * cx, ey + 0.3 * cy, ez + 0.3 * cz, hx, hy, hz), None

        return lax.scan(one, fields, length=8)[0], fields[0].sum()

    yield "numerics/maxwell", TimedProgram(maxwell, ((Arg((160,) * 3),) * 6,), True)

    # Vorticity by real transforms of 1,536 x 1,536, dealiased, Heun's method.
    def vorticity(w: Any) -> Any:
        n = w.shape[0]
        kx = jnp.fft.fftfreq(n, 1 / n)[:, None]
        ky = jnp.fft.rfftfreq(n, 1 / n)[None]
        square = jnp.maximum(kx * kx + ky * ky, 1.0)
        kept = (jnp.abs(kx) < n / 3) & (ky < n / 3)

        def rate(w: Any) -> Any:
            h = jnp.fft.rfft2(w)
            u, v = jnp.fft.irfft2(1j * ky * h / square), jnp.fft.irfft2(-1j * kx * h / square)
            wx, wy = jnp.fft.irfft2(1j * kx * h), jnp.fft.irfft2(1j * ky * h)
            out = jnp.fft.rfft2(u * wx + v * wy)
            return jnp.fft.irfft2(jnp.where(kept, -out - 1e-3 * square * h, 0))

        a = rate(w)
        b = rate(w + 1e-6 * a)
        return w + 5e-7 * (a + b), (w * w).mean()

    yield "numerics/vorticity", TimedProgram(vorticity, (Arg((1536, 1536)),), True)

    # Posterior means of 384 Gaussian processes with 96 points each.
    def posteriors(x: Any, y: Any, at: Any) -> Any:
        square = lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1)  # noqa: E731

        def one(x: Any, y: Any, at: Any) -> Any:
            k = jnp.exp(-square(x, x)) + 0.1 * jnp.eye(x.shape[0])
            c = jnp.linalg.cholesky(k)
            cross = jnp.exp(-square(at, x))
            half = solve_triangular(c, cross.T, lower=True)
            return cross @ cho_solve((c, True), y), 1 - (half * half).sum(0)

        return jax.vmap(one)(x, y, at)

    args = (Arg((384, 96, 4)), Arg((384, 96)), Arg((384, 64, 4)))
    yield "numerics/gaussian_processes", TimedProgram(posteriors, args)

    # Charge of a million particles onto a grid, and the field back to them.
    def particles(state: Any) -> Any:
        place, speed = state
        n = 512
        cell = jnp.floor(place).astype(I32)
        part = place - cell
        grid = jnp.zeros((n, n))
        for dx in (0, 1):
            for dy in (0, 1):
                share = jnp.abs(1 - dx - part[:, 0]) * jnp.abs(1 - dy - part[:, 1])
                grid = grid.at[(cell[:, 0] + dx) % n, (cell[:, 1] + dy) % n].add(share)
        field = jnp.stack(
            [jnp.roll(grid, 1, axis) - jnp.roll(grid, -1, axis) for axis in (0, 1)], -1
        )
        speed = 0.99 * speed + 1e-3 * field[cell[:, 0] % n, cell[:, 1] % n]
        return ((place + 0.1 * speed) % n, speed), grid.max()

    state = (Arg((1 << 20, 2), F32, scale=200.0), Arg((1 << 20, 2)))
    yield "numerics/particles", TimedProgram(particles, (state,), True)

    # All pairs of 6,144 bodies, five steps.
    def bodies(state: Any, mass: Any) -> Any:
        def one(state: Any, _: Any) -> Any:
            place, speed = state
            apart = place[None] - place[:, None]
            inverse = lax.rsqrt((apart * apart).sum(-1) + 0.1)
            speed = speed + 1e-4 * ((mass * inverse**3)[..., None] * apart).sum(1)
            return (place + 1e-3 * speed, speed), None

        return lax.scan(one, state, length=5)[0], state[0].sum()

    args = ((Arg((6144, 3)), Arg((6144, 3))), Arg((6144,), F32, scale=0.1))
    yield "numerics/bodies", TimedProgram(bodies, args, True)

    # Eigenvalues of 512 symmetric matrices of 24 x 24, as of covariances of patches.
    def spectra(patches: Any) -> Any:
        centred = patches - patches.mean(1, keepdims=True)
        covariance = jnp.einsum("bnp,bnq->bpq", centred, centred) / patches.shape[1]
        values, vectors = jnp.linalg.eigh(covariance)
        return jnp.log1p(jnp.abs(values)).sum(-1), vectors[..., -1]

    yield "numerics/spectra", TimedProgram(spectra, (Arg((512, 200, 24)),))

    # A volume that a displacement warps, and the gradient to the displacement.
    def warped(volume: Any, shift: Any) -> Any:
        at = jnp.stack(jnp.meshgrid(*map(jnp.arange, volume.shape), indexing="ij"))

        def loss(shift: Any) -> Any:
            moved = map_coordinates(volume, list(at + shift), order=1, mode="nearest")
            return ((moved - volume) ** 2).mean() + 1e-3 * (jnp.diff(shift, axis=1) ** 2).mean()

        value, slope = jax.value_and_grad(loss)(shift)
        return shift - slope, value

    args = (Arg((128, 128, 96)), Arg((3, 128, 128, 96)))
    yield "numerics/warped_volume", TimedProgram(warped, args)
