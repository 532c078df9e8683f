"""Programs of other fields than language, with the shapes of published runs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.published.weights import Weights, linear, norm, workload
from xlapipe import Workload

F32 = jnp.float32


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

    keys = jax.ShapeDtypeStruct((environments, 2), jnp.uint32)
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

    def conv(w: Weights, name: str, x: Any, out: int, side: int = 3, stride: int = 1) -> Any:
        kernel = w(f"{name} w", side, side, x.shape[-1], out)
        return _convolved(x, kernel, stride) + w(f"{name} b", out)

    def normed(w: Weights, name: str, x: Any) -> Any:
        groups = x.reshape(len(x), -1, 32, x.shape[-1] // 32)
        mean = groups.mean((1, 3), keepdims=True)
        var = groups.var((1, 3), keepdims=True)
        out = ((groups - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
        return out * w(f"{name} scale", x.shape[-1]) + w(f"{name} shift", x.shape[-1])

    def residual(w: Weights, name: str, x: Any, out: int) -> Any:
        y = conv(w, f"{name}c1", jax.nn.silu(normed(w, f"{name}n1", x)), out)
        y = conv(w, f"{name}c2", jax.nn.silu(normed(w, f"{name}n2", y)), out)
        return y + (x if x.shape[-1] == out else conv(w, f"{name}skip", x, out, 1))

    def loss(w: Weights, inputs: Any) -> Any:
        x = conv(w, "in", inputs["images"], 128)
        for level, out in enumerate((128, 256, 512, 512)):
            x = residual(w, f"{level}b", residual(w, f"{level}a", x, out), out)
            if level < 3:
                x = conv(w, f"{level}down", x, out, stride=2)
        x = residual(w, "m1", x, 512)
        y = normed(w, "an", x)
        q, k, v = (conv(w, name, y, 512, 1).reshape(len(y), -1, 512) for name in "qkv")
        share = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) * 512**-0.5)
        x = x + conv(w, "o", jnp.einsum("bqk,bkc->bqc", share, v).reshape(x.shape), 512, 1)
        x = conv(w, "out", jax.nn.silu(normed(w, "on", residual(w, "m2", x, 512))), 8)
        return ((x - inputs["targets"]) ** 2).mean()

    inputs = {
        "images": ((batch, size, size, 3), F32),
        "targets": ((batch, size // 8, size // 8, 8), F32),
    }
    return workload("image-encoder", loss, inputs, options, train=True)


def _convolved(x: Any, kernel: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def segmenter(*, batch: int, train: bool, options: Any = None) -> Workload:
    """The image encoder of Segment Anything, huge, at 1,024 pixels, in float32."""
    layers, width, heads, side, window = 32, 1280, 16, 64, 14

    def dense(w: Weights, name: str, x: Any, out: int) -> Any:
        return linear(w, name, x, out) + w(f"{name} b", out)

    def normed(w: Weights, name: str, x: Any) -> Any:
        return norm(x) * w(f"{name} scale", width) + w(f"{name} shift", width)

    def attend(w: Weights, x: Any) -> Any:
        count, size = x.shape[0], x.shape[1]
        q, k, v = (
            dense(w, name, x, width).reshape(count, size * size, heads, -1).swapaxes(1, 2)
            for name in "qkv"
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", q * 80**-0.5, k)
        distance = jnp.arange(size)[:, None] - jnp.arange(size) + size - 1
        grid = q.reshape(count, heads, size, size, -1)
        places = (w(name, 2 * size - 1, width // heads)[distance] for name in ("rows", "columns"))
        rows, columns = (
            jnp.einsum(form, grid, place)
            for form, place in zip(("bhyxd,ykd->bhyxk", "bhyxd,xkd->bhyxk"), places, strict=True)
        )
        scores = scores.reshape(count, heads, size, size, size, size)
        scores = scores + rows[..., None] + columns[..., None, :]
        share = jax.nn.softmax(scores.reshape(count, heads, size * size, -1))
        mixed = jnp.einsum("bhqk,bhkd->bqhd", share, v).reshape(count, size, size, width)
        return dense(w, "o", mixed, width)

    def layer(w: Weights, x: Any, windowed: bool) -> Any:
        y = normed(w, "n1", x)
        if windowed:
            parts = -(-side // window)
            y = jnp.pad(y, ((0, 0), *((0, parts * window - side),) * 2, (0, 0)))
            y = y.reshape(len(y), parts, window, parts, window, width).swapaxes(2, 3)
            y = attend(w, y.reshape(-1, window, window, width))
            y = y.reshape(-1, parts, parts, window, window, width).swapaxes(2, 3)
            y = y.reshape(len(x), parts * window, -1, width)[:, :side, :side]
        else:
            y = attend(w, y)
        x = x + y
        hidden = jax.nn.gelu(dense(w, "up", normed(w, "n2", x), 4 * width), approximate=False)
        return x + dense(w, "down", hidden, width)

    def forward(w: Weights, inputs: Any) -> Any:
        x = linear(w, "patches", inputs["patches"], width) + w("positions", side, side, width)
        for number in range(layers):
            x = w.inside(f"layer {number}", layer, x, number % 8 != 7)
        return _convolved(linear(w, "neck1", x, 256), w("neck2", 3, 3, 256, 256))

    def loss(w: Weights, inputs: Any) -> Any:
        return ((forward(w, inputs) - inputs["targets"]) ** 2).mean()

    inputs: dict[str, Any] = {"patches": ((batch, side, side, 768), F32)}
    if train:
        inputs["targets"] = (batch, side, side, 256), F32
    return workload("segmenter", loss if train else forward, inputs, options, train=train)
