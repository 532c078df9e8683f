# ruff: noqa: E731 - a lambda per program
"""Programs in which XLA asks the device: sorts, libraries, attention, loops, the memory limit.

Most take arguments, so that one function covers several dtypes and sizes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe import Workload


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def step(name: str, fn: Any, args: Any, **fields: Any) -> Workload:
    return Workload(name=name, fn=fn, args=tuple(args), **fields)


def sort(dtype: str, shape: tuple[int, ...], descending: bool = False) -> Workload:
    fn = lambda x: jnp.sort(x, descending=descending)
    return step(
        f"sort_{dtype}_{'x'.join(map(str, shape))}" + "_d" * descending,
        fn,
        [array(getattr(jnp, dtype), *shape)],
    )


def argsort(dtype: str, shape: tuple[int, ...]) -> Workload:
    return step(
        f"argsort_{dtype}_{'x'.join(map(str, shape))}",
        jnp.argsort,
        [array(getattr(jnp, dtype), *shape)],
    )


def sort_pairs(key: str, value: str, n: int) -> Workload:
    fn = lambda k, v: lax.sort((k, v), num_keys=1, is_stable=False)
    return step(
        f"sort_pairs_{key}_{value}_{n}",
        fn,
        [array(getattr(jnp, key), n), array(getattr(jnp, value), n)],
    )


def top_k(dtype: str, rows: int, n: int, k: int) -> Workload:
    return step(
        f"top_k_{dtype}_{rows}_{n}_{k}",
        lambda x: lax.top_k(x, k),
        [array(getattr(jnp, dtype), rows, n)],
    )


def unique_large() -> Workload:
    fn = lambda x: jnp.unique(x, size=4096, return_counts=True, return_inverse=True, fill_value=0)
    return step("unique_large", fn, [i32(1 << 18)])


def quantile_large() -> Workload:
    return step(
        "quantile_large", lambda x: jnp.quantile(x, jnp.array([0.1, 0.5, 0.9])), [f32(100_000)]
    )


def median_of_rows() -> Workload:
    return step("median_of_rows", lambda x: jnp.median(x, axis=1), [f32(256, 4096)])


def top_p() -> Workload:
    def fn(logits: Any) -> Any:
        probabilities = jnp.sort(jax.nn.softmax(logits), axis=-1, descending=True)
        total = jnp.cumsum(probabilities, axis=-1)
        cutoff = jnp.min(jnp.where(total > 0.9, probabilities, 1.0), axis=-1, keepdims=True)
        return jnp.where(logits >= cutoff, logits, -jnp.inf)

    return step("top_p", fn, [f32(64, 32000)])


def permutation_large() -> Workload:
    fn = lambda key: jax.random.permutation(key, 1 << 16)
    return step("permutation_large", fn, [jax.eval_shape(lambda: jax.random.key(0))])


def cumsum_large(dtype: str = "float32") -> Workload:
    return step(f"cumsum_large_{dtype}", jnp.cumsum, [array(getattr(jnp, dtype), 1 << 20)])


def cumsum_rows() -> Workload:
    return step("cumsum_rows", lambda x: jnp.cumsum(x, axis=1), [f32(64, 32000)])


def bincount_large() -> Workload:
    return step("bincount_large", lambda x: jnp.bincount(x, length=1000), [i32(1 << 18)])


def _conv(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv(dtype: str, n: int, hw: int, c: int, k: int, f: int, stride: int = 1) -> Workload:
    kind = getattr(jnp, dtype)
    args = [array(kind, n, hw, hw, c), array(kind, f, f, c, k)]
    return step(
        f"conv_{dtype}_{n}_{hw}_{c}_{k}_{f}_{stride}", lambda x, w: _conv(x, w, stride), args
    )


def conv_train(dtype: str) -> Workload:
    kind = getattr(jnp, dtype)

    def loss(params: Any, x: Any) -> Any:
        for w, scale in params:
            x = _conv(x, w)
            x = jax.nn.relu(x * scale)
        return (x.astype(jnp.float32) ** 2).mean()

    params = [
        (array(kind, 3, 3, 16, 32), array(kind, 32)),
        (array(kind, 3, 3, 32, 32), array(kind, 32)),
    ]
    fn = lambda params, x: jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x))
    return step(f"conv_train_{dtype}", fn, [params, array(kind, 8, 32, 32, 16)], donate_argnums=0)


def conv_bias_relu(dtype: str) -> Workload:
    kind = getattr(jnp, dtype)
    fn = lambda x, w, b: jax.nn.relu(_conv(x, w) + b)
    return step(
        f"conv_bias_relu_{dtype}",
        fn,
        [array(kind, 8, 32, 32, 64), array(kind, 3, 3, 64, 64), array(kind, 64)],
    )


def conv3d() -> Workload:
    fn = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
    )
    return step("conv3d", fn, [f32(2, 8, 16, 16, 8), f32(3, 3, 3, 8, 16)])


def conv_depthwise() -> Workload:
    fn = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=64
    )
    return step("conv_depthwise", fn, [f32(4, 32, 32, 64), f32(3, 3, 1, 64)])


def conv_dilated() -> Workload:
    fn = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return step("conv_dilated", fn, [f32(4, 32, 32, 16), f32(3, 3, 16, 16)])


def cudnn_attention(n: int, t: int, h: int, d: int, causal: bool = False) -> Workload:
    fn = lambda q, k, v: jax.nn.dot_product_attention(
        q, k, v, is_causal=causal, implementation="cudnn"
    )
    qkv = array(jnp.bfloat16, n, t, h, d)
    return step(f"cudnn_attention_{n}_{t}_{h}_{d}" + "_causal" * causal, fn, [qkv, qkv, qkv])


def cudnn_attention_train(n: int, t: int, h: int, d: int) -> Workload:
    def loss(q: Any, k: Any, v: Any) -> Any:
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        return out.astype(jnp.float32).sum()

    qkv = array(jnp.bfloat16, n, t, h, d)
    return step(
        f"cudnn_attention_train_{n}_{t}_{h}_{d}", jax.grad(loss, (0, 1, 2)), [qkv, qkv, qkv]
    )


def fft_large(kind: str, n: int) -> Workload:
    dtype = jnp.float32 if kind == "rfft" else jnp.complex64
    return step(f"fft_{kind}_{n}", getattr(jnp.fft, kind), [array(dtype, 16, n)])


def fft3d() -> Workload:
    return step("fft3d", jnp.fft.fftn, [array(jnp.complex64, 32, 32, 32)])


def linalg(op: str, n: int, batch: int = 0) -> Workload:
    shape = (batch, n, n) if batch else (n, n)
    return step(f"linalg_{op}_{n}_{batch}", getattr(jnp.linalg, op), [f32(*shape)])


def least_squares() -> Workload:
    return step("least_squares", lambda a, b: jnp.linalg.lstsq(a, b)[0], [f32(200, 50), f32(200)])


def gemm(dtype: str, m: int, n: int, k: int) -> Workload:
    kind = getattr(jnp, dtype)
    return step(
        f"gemm_{dtype}_{m}_{n}_{k}", lambda a, b: a @ b, [array(kind, m, k), array(kind, k, n)]
    )


def gemm_bias_gelu() -> Workload:
    fn = lambda a, b, c: jax.nn.gelu(a @ b + c)
    kind = jnp.bfloat16
    return step(
        "gemm_bias_gelu", fn, [array(kind, 512, 1024), array(kind, 1024, 4096), array(kind, 4096)]
    )


def gemv() -> Workload:
    return step(
        "gemv", lambda a, b: a @ b, [array(jnp.bfloat16, 4096, 4096), array(jnp.bfloat16, 4096)]
    )


def batched_gemm() -> Workload:
    kind = jnp.bfloat16
    return step(
        "batched_gemm", lambda a, b: a @ b, [array(kind, 32, 128, 256), array(kind, 32, 256, 128)]
    )


def ragged_dot_large() -> Workload:
    kind = jnp.bfloat16
    return step(
        "ragged_dot_large",
        lax.ragged_dot,
        [array(kind, 1024, 512), array(kind, 8, 512, 1024), i32(8)],
    )


def mlp_train(layers: int, dtype: str = "bfloat16") -> Workload:
    """A scanned training step with AdamW-like moments, donated."""
    kind = getattr(jnp, dtype)

    def loss(weights: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            up, down = w
            h = x.astype(jnp.float32)
            h = (h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6)).astype(kind)
            return x + jax.nn.gelu(h @ up) @ down, None

        return (lax.scan(body, x, weights)[0].astype(jnp.float32) ** 2).mean()

    def fn(weights: Any, moments: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), moments, grads)
        weights = jax.tree.map(lambda w, m: w - (1e-3 * m).astype(kind), weights, moments)
        return weights, moments, value

    weights = (array(kind, layers, 256, 1024), array(kind, layers, 1024, 256))
    moments = (f32(layers, 256, 1024), f32(layers, 1024, 256))
    return step(
        f"mlp_train_{layers}_{dtype}",
        fn,
        [weights, moments, array(kind, 64, 256)],
        donate_argnums=(0, 1),
    )


def attention_train(remat: bool = False) -> Workload:
    """A scanned training step of four attention blocks."""

    def block(x: Any, w: Any) -> Any:
        qkv = (x @ w["qkv"]).reshape(2, 128, 3, 4, 64)
        out = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
        x = x + out.reshape(2, 128, 256) @ w["out"]
        return x + jax.nn.silu(x @ w["up"]) @ w["down"], None

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(block) if remat else block
        return lax.scan(body, x, weights)[0].astype(jnp.float32).mean()

    kind = jnp.bfloat16
    weights = {
        "qkv": array(kind, 4, 256, 768), "out": array(kind, 4, 256, 256),
        "up": array(kind, 4, 256, 1024), "down": array(kind, 4, 1024, 256),
    }  # fmt: skip
    return step(
        "attention_train" + "_remat" * remat,
        jax.value_and_grad(loss),
        [weights, array(kind, 2, 128, 256)],
    )


def lstm() -> Workload:
    def fn(w: Any, u: Any, xs: Any) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((16, 128))
        return lax.scan(cell, (zero, zero), xs)[1]

    return step("lstm", fn, [f32(64, 512), f32(128, 512), f32(20, 16, 64)])


def lstm_gradient() -> Workload:
    fn = lambda w, u, xs: (lstm().fn(w, u, xs) ** 2).sum()
    return step(
        "lstm_gradient", jax.grad(fn, (0, 1)), [f32(64, 512), f32(128, 512), f32(20, 16, 64)]
    )


def small_kernels() -> Workload:
    """Many small kernels and gemms, which become a command buffer."""

    def fn(x: Any, w: Any) -> Any:
        for _ in range(12):
            x = jnp.tanh(x @ w) + jax.nn.softmax(x)
        return x

    return step("small_kernels", fn, [f32(64, 128), f32(128, 128)])


def norms() -> Workload:
    def fn(x: Any, s: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        normed = (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * s
        return normed, jax.nn.softmax(x), jax.nn.logsumexp(x, -1)

    return step("norms", fn, [array(jnp.bfloat16, 512, 4096), array(jnp.bfloat16, 4096)])


def reductions() -> Workload:
    fn = lambda x: (x.sum(), x.sum(0), x.max(1), x.argmax(1), x.mean((0, 1)))
    return step("reductions", fn, [f32(2048, 3000)])


def memory_limit(gib: int) -> Workload:
    """A gradient that keeps about `gib` GiB of residuals, each of which can be computed again."""
    layers = 24
    n = gib * (1 << 30) // 4 // layers

    def loss(x: Any) -> Any:
        for _ in range(layers):
            x = jnp.sin(x - lax.optimization_barrier(x.mean()))
        return x.sum()

    return step(f"memory_limit_{gib}", jax.grad(loss), [f32(n)], donate_argnums=0)
