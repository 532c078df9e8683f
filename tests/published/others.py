"""Programs of other fields than language, with the shapes of published runs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.published.transformer import adamw_step
from xlapipe import Workload

F32, BF16 = jnp.float32, jnp.bfloat16


def array(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


# --- Reinforcement learning: environments under a random policy


def rollout(*, environment: str, environments: int, steps: int, options: Any = None) -> Workload:
    """Steps of all environments in one loop, each of which starts again when it ends."""
    step, restart, actions = {
        "cart-pole": (_cart_pole, _near_zero, 2),
        "pendulum": (_pendulum, _anywhere, 0),
    }[environment]

    def one(key: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            state, clock, key = carry
            key, for_action, for_start = jax.random.split(key, 3)
            if actions:
                action: Any = jax.random.randint(for_action, (), 0, actions)
            else:
                action = jax.random.uniform(for_action, (), minval=-2.0, maxval=2.0)
            state, reward, ended = step(state, action)
            clock = clock + 1
            ended = ended | (clock >= steps)
            state = jax.tree.map(partial(jnp.where, ended), restart(for_start), state)
            clock = jnp.where(ended, 0, clock)
            return (state, clock, key), (state, reward, ended)

        key, for_start = jax.random.split(key)
        return lax.scan(body, (restart(for_start), 0, key), None, steps)[1]

    keys = array(environments, 2, dtype=jnp.uint32)
    return Workload(name="rollout", fn=jax.vmap(one), args=(keys,), options=options or {})


def _near_zero(key: Any) -> Any:
    return tuple(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))


def _anywhere(key: Any) -> Any:
    return tuple(jax.random.uniform(key, (2,), minval=-jnp.pi, maxval=jnp.pi))


def _cart_pole(state: Any, action: Any) -> Any:
    x, speed, angle, turn = state
    force = 10.0 * action - 10.0 * (1 - action)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (force + 0.05 * turn**2 * sin) / 1.1
    turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pushing = push - 0.05 * turning * cos / 1.1
    new = x + 0.02 * speed, speed + 0.02 * pushing, angle + 0.02 * turn, turn + 0.02 * turning
    return new, jnp.float32(1), (abs(new[0]) > 2.4) | (abs(new[2]) > 0.2095)


def _pendulum(state: Any, action: Any) -> Any:
    angle, turn = state
    torque = jnp.clip(action, -2.0, 2.0)
    reward = (
        -((jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi) ** 2) - 0.1 * turn**2 - 0.001 * torque**2
    )
    turn = jnp.clip(turn + 0.05 * (15 * jnp.sin(angle) + 3 * torque), -8.0, 8.0)
    return (angle + 0.05 * turn, turn), reward, jnp.bool_(False)


# --- Images: the encoder of Stable Diffusion, and of Segment Anything


def image_encoder(*, batch: int, size: int, options: Any = None) -> Workload:
    """A training step of Stable Diffusion's encoder of images, in float32."""
    params: dict[str, Any] = {}

    def conv(name: str, inside: int, out: int, side: int = 3) -> None:
        params[name] = {"w": array(side, side, inside, out), "b": array(out)}

    def norm(name: str, width: int) -> None:
        params[name] = {"w": array(width), "b": array(width)}

    def block(name: str, inside: int, out: int) -> None:
        norm(f"{name}n1", inside)
        conv(f"{name}c1", inside, out)
        norm(f"{name}n2", out)
        conv(f"{name}c2", out, out)
        if inside != out:
            conv(f"{name}skip", inside, out, 1)

    levels = (128, 256, 512, 512)
    conv("in", 3, 128)
    width = 128
    for level, out in enumerate(levels):
        block(f"{level}a", width, out)
        block(f"{level}b", out, out)
        width = out
        if level < 3:
            conv(f"{level}down", out, out)
    for name in ("m1", "m2"):
        block(name, 512, 512)
    norm("an", 512)
    for name in ("aq", "ak", "av", "ao"):
        conv(name, 512, 512, 1)
    norm("on", 512)
    conv("out", 512, 8)

    def loss(p: Any, images: Any, targets: Any) -> Any:
        def apply(name: str, x: Any, stride: int = 1) -> Any:
            y = lax.conv_general_dilated(
                x,
                p[name]["w"],
                (stride, stride),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            return y + p[name]["b"]

        def normed(name: str, x: Any) -> Any:
            groups = x.reshape(len(x), -1, 32, x.shape[-1] // 32)
            mean = groups.mean((1, 3), keepdims=True)
            var = groups.var((1, 3), keepdims=True)
            out = ((groups - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
            return out * p[name]["w"] + p[name]["b"]

        def residual(name: str, x: Any) -> Any:
            y = apply(f"{name}c1", jax.nn.silu(normed(f"{name}n1", x)))
            y = apply(f"{name}c2", jax.nn.silu(normed(f"{name}n2", y)))
            return y + (apply(f"{name}skip", x) if f"{name}skip" in p else x)

        x = apply("in", images)
        for level in range(4):
            x = residual(f"{level}b", residual(f"{level}a", x))
            if level < 3:
                x = apply(f"{level}down", x, 2)
        x = residual("m1", x)
        y = normed("an", x)
        q, k, v = (apply(name, y).reshape(len(y), -1, 512) for name in ("aq", "ak", "av"))
        weights = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) * 512**-0.5)
        x = x + apply("ao", jnp.einsum("bqk,bkc->bqc", weights, v).reshape(x.shape))
        x = apply("out", jax.nn.silu(normed("on", residual("m2", x))))
        return ((x - targets) ** 2).mean()

    images = array(batch, size, size, 3), array(batch, size // 8, size // 8, 8)
    return Workload(
        name="image-encoder",
        fn=partial(adamw_step, loss, 1),
        args=((params,) * 3, *images),
        donate_argnums=0,
        options=options or {},
    )


def segmenter(*, batch: int, train: bool, options: Any = None) -> Workload:
    """The image encoder of Segment Anything, huge, at 1,024 pixels, in float32."""
    layers, width, heads, side, window = 32, 1280, 16, 64, 14
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    layer: dict[str, Any] = {name: array(*shape) for name, shape in shapes.items()}
    layer |= {f"b{name}": array(shape[1]) for name, shape in shapes.items()}
    layer |= {name: array(width) for name in ("n1", "n2", "m1", "m2")}

    def sized(number: int) -> dict[str, Any]:
        size = side if number % 8 == 7 else window
        return layer | {
            "rows": array(2 * size - 1, width // heads),
            "columns": array(2 * size - 1, 80),
        }

    params = {
        "patches": array(768, width),
        "positions": array(side, side, width),
        "layers": [sized(number) for number in range(layers)],
        "neck1": array(width, 256),
        "neck2": array(3, 3, 256, 256),
    }

    def norm(x: Any, w: Any, b: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w + b

    def attend(p: Any, x: Any) -> Any:
        count, size = x.shape[0], x.shape[1]
        q, k, v = (
            (x @ p[name] + p[f"b{name}"]).reshape(count, size * size, heads, -1).swapaxes(1, 2)
            for name in "qkv"
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", q * 80**-0.5, k)
        distance = jnp.arange(size)[:, None] - jnp.arange(size) + size - 1
        grid = q.reshape(count, heads, size, size, -1)
        rows = jnp.einsum("bhyxd,ykd->bhyxk", grid, p["rows"][distance])
        columns = jnp.einsum("bhyxd,xkd->bhyxk", grid, p["columns"][distance])
        scores = scores.reshape(count, heads, size, size, size, size)
        scores = scores + rows[..., None] + columns[..., None, :]
        weights = jax.nn.softmax(scores.reshape(count, heads, size * size, -1))
        mixed = jnp.einsum("bhqk,bhkd->bqhd", weights, v).reshape(count, size, size, width)
        return mixed @ p["o"] + p["bo"]

    def forward(p: Any, patches: Any) -> Any:
        x = patches @ p["patches"] + p["positions"]
        for number, w in enumerate(p["layers"]):
            y = norm(x, w["n1"], w["m1"])
            if number % 8 == 7:
                y = attend(w, y)
            else:
                parts = -(-side // window)
                y = jnp.pad(y, ((0, 0), *((0, parts * window - side),) * 2, (0, 0)))
                y = y.reshape(len(y), parts, window, parts, window, width).swapaxes(2, 3)
                y = attend(w, y.reshape(-1, window, window, width))
                y = y.reshape(-1, parts, parts, window, window, width).swapaxes(2, 3)
                y = y.reshape(len(x), parts * window, -1, width)[:, :side, :side]
            x = x + y
            y = norm(x, w["n2"], w["m2"])
            x = x + jax.nn.gelu(y @ w["up"] + w["bup"], approximate=False) @ w["down"] + w["bdown"]
        x = x @ p["neck1"]
        return lax.conv_general_dilated(
            x, p["neck2"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(p: Any, patches: Any, targets: Any) -> Any:
        return ((forward(p, patches) - targets) ** 2).mean()

    patches = array(batch, side, side, 768)
    if not train:
        return Workload(name="segmenter", fn=forward, args=(params, patches), options=options or {})
    return Workload(
        name="segmenter",
        fn=partial(adamw_step, loss, 1),
        args=((params,) * 3, patches, array(batch, side, side, 256)),
        donate_argnums=0,
        options=options or {},
    )


# --- Proteins: AlphaFold 3


def structure(
    *, tokens: int, recycles: int = 11, steps: int = 200, options: Any = None
) -> Workload:
    """Inference of AlphaFold 3 in bfloat16: pairs, alignments, templates and 200 denoising steps.

    Passes of 48 pair blocks, 4 with an alignment of 1,024 rows, and 2 for each of four
    templates; then five samples by 24 blocks in each step. Parts of atoms are left out.
    """
    samples, rows = 5, 1024

    def weights(*shape: int) -> Any:
        return array(*shape, dtype=BF16)

    def of_pairs(count: int, c: int) -> Any:
        shapes = {f"{name}_in": (c, 4 * c) for name in ("out", "into")}
        shapes |= {f"{name}_gate": (c, c) for name in ("out", "into")}
        shapes |= {f"{name}_back": (c, c) for name in ("out", "into")}
        shapes |= {f"{name}_qkvg": (c, 4 * c) for name in ("row", "column")}
        shapes |= {f"{name}_bias": (c, 4) for name in ("row", "column")}
        shapes |= {f"{name}_o": (c, c) for name in ("row", "column")}
        shapes |= {"up": (c, 8 * c), "down": (4 * c, c)}
        return {name: weights(count, *shape) for name, shape in shapes.items()}

    single = {
        "qkvg": weights(48, 384, 1536),
        "bias": weights(48, 128, 16),
        "o": weights(48, 384, 384),
    }
    single |= {"up": weights(48, 384, 3072), "down": weights(48, 1536, 384)}
    alignment = {
        "left": weights(4, 64, 32),
        "right": weights(4, 64, 32),
        "mean": weights(4, 1024, 128),
    }
    alignment |= {"v": weights(4, 64, 128), "bias": weights(4, 128, 8), "o": weights(4, 64, 64)}
    alignment |= {"up": weights(4, 64, 512), "down": weights(4, 256, 64)}
    token = {
        "qkvg": weights(24, 768, 3072),
        "bias": weights(24, 128, 16),
        "o": weights(24, 768, 768),
    }
    token |= {"up": weights(24, 768, 3072), "down": weights(24, 1536, 768)}
    token |= {"norms": weights(24, 384, 6 * 768)}
    params = {
        "pairs": of_pairs(48, 128),
        "single": single,
        "aligned_pairs": of_pairs(4, 128),
        "alignment": alignment,
        "templates": of_pairs(2, 64),
    }

    def norm(x: Any) -> Any:
        wide = x.astype(F32)
        wide = wide - wide.mean(-1, keepdims=True)
        return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)

    def transition(x: Any, p: Any) -> Any:
        a, b = jnp.split(norm(x) @ p["up"], 2, -1)
        return x + (jax.nn.silu(a) * b) @ p["down"]

    def attention(x: Any, qkvg: Any, bias: Any, heads: int) -> Any:
        q, k, v, gate = jnp.split(x @ qkvg, 4, -1)
        q, k, v = (part.reshape(*part.shape[:-1], heads, -1) for part in (q, k, v))
        mixed = jax.nn.dot_product_attention(q, k, v, bias, implementation="cudnn")
        return mixed.reshape(gate.shape) * jax.nn.sigmoid(gate)

    def of_rows(x: Any, p: Any, name: str) -> Any:
        y = norm(x)
        bias = (y @ p[f"{name}_bias"]).transpose(2, 0, 1)[None]
        y = y if name == "row" else y.swapaxes(0, 1)
        y = attention(y, p[f"{name}_qkvg"], bias, 4) @ p[f"{name}_o"]
        return x + (y if name == "row" else y.swapaxes(0, 1))

    def triangles(x: Any, p: Any, name: str) -> Any:
        y = norm(x)
        values, gates = jnp.split(y @ p[f"{name}_in"], 2, -1)
        a, b = jnp.split((values * jax.nn.sigmoid(gates)).transpose(2, 0, 1), 2, 0)
        form = "cik,cjk->cij" if name == "out" else "ckj,cki->cij"
        mixed = norm(jnp.einsum(form, a, b).transpose(1, 2, 0)) @ p[f"{name}_back"]
        return x + mixed * jax.nn.sigmoid(y @ p[f"{name}_gate"])

    def pair_block(x: Any, p: Any) -> Any:
        for name in ("out", "into"):
            x = triangles(x, p, name)
        for name in ("row", "column"):
            x = of_rows(x, p, name)
        return transition(x, p)

    def aligned(carry: Any, p: Any) -> Any:
        x, m = carry
        pairs, q = p
        y = norm(m)
        left, right = y @ q["left"], y @ q["right"]
        outer = jnp.einsum("mic,mjd->ijcd", left, right).reshape(tokens, tokens, -1)
        x = x + outer @ q["mean"]
        share = jax.nn.softmax((norm(x) @ q["bias"]).transpose(2, 0, 1), axis=-1)
        v, gate = jnp.split(y @ q["v"], 2, -1)
        mixed = jnp.einsum("hij,mjhc->mihc", share, v.reshape(rows, tokens, 8, 8))
        m = m + (mixed.reshape(gate.shape) * jax.nn.sigmoid(gate)) @ q["o"]
        return (pair_block(x, pairs), transition(m, q)), None

    def pairformer(carry: Any, p: Any) -> Any:
        x, s = carry
        pairs, q = p
        x = pair_block(x, pairs)
        bias = (norm(x) @ q["bias"]).transpose(2, 0, 1)[None]
        s = s + (attention(norm(s)[None], q["qkvg"], bias, 16) @ q["o"])[0]
        return (x, transition(s, q)), None

    def denoise(carry: Any, p: Any, x: Any, s: Any) -> Any:
        bias = (x @ p["bias"]).transpose(2, 0, 1)[None]
        scales = jnp.split(norm(s) @ p["norms"], 6, -1)
        y = norm(carry) * jax.nn.sigmoid(scales[0]) + scales[1]
        carry = carry + attention(y, p["qkvg"], bias, 16) @ p["o"] * jax.nn.sigmoid(scales[2])
        y = norm(carry) * jax.nn.sigmoid(scales[3]) + scales[4]
        a, b = jnp.split(y @ p["up"], 2, -1)
        return carry + (jax.nn.silu(a) * b) @ p["down"] * jax.nn.sigmoid(scales[5]), None

    def infer(p: Any, token: Any, x: Any, s: Any, m: Any, t: Any, noise: Any) -> Any:
        def recycle(carry: Any, _: Any) -> Any:
            x, s = carry

            def template(total: Any, one: Any) -> Any:
                one, _ = lax.scan(lambda x, p: (pair_block(x, p), None), one, p["templates"])
                return total + one, None

            found, _ = lax.scan(template, jnp.zeros_like(t[0]), t)
            x = x + jnp.concatenate([found, found], -1)
            (x, _), _ = lax.scan(aligned, (x, m), (p["aligned_pairs"], p["alignment"]))
            return lax.scan(pairformer, (x, s), (p["pairs"], p["single"]))[0], None

        (x, s), _ = lax.scan(recycle, (x, s), None, recycles)

        def step(y: Any, _: Any) -> Any:
            return lax.scan(lambda y, p: denoise(y, p, norm(x), s), y, token)[0], None

        return lax.scan(step, noise, None, steps)[0]

    args = (
        params,
        token,
        weights(tokens, tokens, 128),
        weights(tokens, 384),
        weights(rows, tokens, 64),
        weights(4, tokens, tokens, 64),
        weights(samples, tokens, 768),
    )
    return Workload(name="structure", fn=infer, args=args, options=options or {})
