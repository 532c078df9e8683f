"""Newer features of jax itself."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, lax
from jax.sharding import PartitionSpec as P

from tests.public.step import Step, bf16, f32, i32


def jax_ragged_dot() -> Step:
    return Step(lax.ragged_dot, (bf16(128, 64), bf16(4, 64, 32), i32(4)))


def _scaled(dtype: Any) -> Step:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        wide = x.astype(dtype).astype(jnp.bfloat16)
        return wide @ y.astype(dtype).astype(jnp.bfloat16)

    return Step(step, (bf16(64, 64), bf16(64, 64)))


def jax_fp4() -> Step:
    return _scaled(jnp.float4_e2m1fn)


def jax_int4() -> Step:
    return _scaled(jnp.int4)


def jax_scaled_matmul() -> Step:
    def step(a: jax.Array, b: jax.Array, a_scales: jax.Array, b_scales: jax.Array) -> Any:
        return jax.nn.scaled_matmul(a, b, a_scales, b_scales)

    f8 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float8_e4m3fn)
    e8 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float8_e8m0fnu)
    return Step(step, (f8((1, 64, 128)), f8((1, 64, 128)), e8((1, 64, 4)), e8((1, 64, 4))))


def jax_ring_attention() -> Step:
    """Keys and values go round four devices."""

    def ring(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def turn(_: int, carry: Any) -> Any:
            k, v, total = carry
            total = total + jax.nn.softmax(q @ k.T) @ v
            shift = [(n, (n + 1) % 4) for n in range(4)]
            return lax.ppermute(k, "d", shift), lax.ppermute(v, "d", shift), total

        return lax.fori_loop(0, 4, turn, (k, v, jnp.zeros_like(q)))[2]

    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.shard_map(ring, in_specs=P("d"), out_specs=P("d"), check_vma=False)(q, k, v)

    return Step(step, (f32(64, 32),) * 3, mesh={"d": 4}, in_specs=(P("d"),) * 3)


def jax_tensor_parallel() -> Step:
    """The compiler places the collectives over two axes."""

    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> Any:
        return jax.grad(lambda it: jnp.mean((jax.nn.gelu(x @ it) @ down) ** 2))(up)

    specs = (P("data", None), P(None, "model"), P("model", None))
    args = (f32(32, 64), f32(64, 128), f32(128, 64))
    return Step(step, args, mesh={"data": 2, "model": 2}, in_specs=specs)


def jax_checkpoint_scan() -> Step:
    def step(weights: jax.Array, x: jax.Array) -> Any:
        @jax.checkpoint
        def layer(x: jax.Array, weight: jax.Array) -> Any:
            return jnp.tanh(x @ weight), None

        return jax.grad(lambda it: jnp.sum(lax.scan(layer, x, it)[0]))(weights)

    return Step(step, (f32(8, 64, 64), f32(32, 64)))


def jax_attention() -> Step:
    return Step(jax.nn.dot_product_attention, (bf16(2, 64, 4, 32),) * 3)


def jax_export() -> Step:
    """A program that was exported for CUDA, called again."""
    exported = export.export(jax.jit(jnp.sin), platforms=["cuda"])(f32(64))
    return Step(exported.call, (f32(64),))


def jax_linear_algebra() -> Step:
    return Step(jnp.linalg.qr, (f32(64, 32),))


def jax_eigenvalues() -> Step:
    return Step(jnp.linalg.eigh, (f32(32, 32),))


def jax_fft() -> Step:
    return Step(lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), (f32(8, 256),))


def jax_random_keys() -> Step:
    def step(seed: jax.Array) -> Any:
        return jax.random.normal(jax.random.fold_in(jax.random.key(0), seed), (256,))

    return Step(step, (i32(),))


def jax_associative_scan() -> Step:
    return Step(lambda x: lax.associative_scan(jnp.maximum, x), (f32(256, 16),))


def jax_custom_vjp() -> Step:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return x**2

    clipped.defvjp(lambda x: (x**2, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))
    return Step(jax.grad(lambda x: jnp.sum(clipped(x))), (f32(256),))
