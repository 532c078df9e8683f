"""Per-tensor dynamic float8 scaling: torchao's recipe, as dump 004 has it.

Forward operands are e4m3fn, gradients e5m2. Codes are `clip(t * scale)`, so that the largest
magnitude of the tensor becomes the largest of the format; a product of codes is divided by both
scales. What is not finite stays so: a NaN makes the scale and every code NaN, an infinity makes
the scale 0, so that finite elements become 0 and the infinity NaN.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

E4M3 = jnp.float8_e4m3fn
E5M2 = jnp.float8_e5m2
# A tensor of zeros has a scale too.
LEAST_AMAX = 1e-12

_DIMENSIONS = (((1,), (1,)), ((), ()))
# jax 0.12.0.1 does not get float8 algorithms past its own plugin ("failed to legalize operation
# 'vhlo.dot_general_v2'"). There the operand precision says the same to cuBLASLt, but leaves XLA
# free to take Triton.
_NAMES_ALGORITHM = jax.__version_info__ < (0, 12)


def largest(dtype: Any) -> float:
    """The largest finite magnitude: 448 for e4m3fn, 57344 for e5m2."""
    return float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]


def scale_of(t: Float[Array, "*S"], dtype: Any) -> Float[Array, ""]:
    """float32 `largest(dtype) / max(amax(|t|), 1e-12)`, rounded once.

    With jax_enable_x64 the quotient is taken in float64, as torchao does; without, in float32,
    which differs only where a device does not round its quotients correctly.
    """
    amax = jnp.max(jnp.abs(t))
    if jax.config.jax_enable_x64:
        quotient = largest(dtype) / jnp.maximum(amax.astype(jnp.float64), LEAST_AMAX)
        return quotient.astype(jnp.float32)
    # 1e-12 itself is not rounded before it divides.
    least = jnp.float32(largest(dtype) / LEAST_AMAX)
    amax = amax.astype(jnp.float32)
    return jnp.where(amax < LEAST_AMAX, least, largest(dtype) / amax)


def codes_of(t: Float[Array, "*S"], scale: Float[Array, ""], dtype: Any) -> Float[Array, "*S"]:
    """`clip(float32(t) * scale)` as float8: what would overflow saturates, NaN stays NaN."""
    limit = largest(dtype)
    return jnp.clip(t.astype(jnp.float32) * scale, -limit, limit).astype(dtype)


def scaled_dot(
    a: Float[Array, "M K"],
    b: Float[Array, "N K"],
    unscale: Float[Array, ""],
    *,
    dtype: Any,
    fast_accumulation: bool,
) -> Float[Array, "M N"]:
    """`a bᵀ * unscale`, of float8 codes, in `dtype`.

    On an NVIDIA GPU this is one cuBLASLt float8 gemm; its sums are in float32 or, with fast
    accumulation, in the tensor cores' narrower one. Elsewhere codes are widened to float32, which
    holds each of them, and multiplied there.
    """

    def cuda(a: Array, b: Array, unscale: Array) -> Array:
        precision: lax.DotAlgorithmPreset | lax.Precision
        if _NAMES_ALGORITHM:
            precision = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32
            if fast_accumulation:
                precision = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM
        else:
            precision = lax.Precision.DEFAULT if fast_accumulation else lax.Precision.HIGHEST
        product = lax.dot_general(
            a, b, _DIMENSIONS, precision=precision, preferred_element_type=dtype
        )
        # XLA moves this factor into the gemm, as an operand's scale in float32, where the product
        # is larger than an operand. Elsewhere it is rounded to dtype, as the product is.
        return product * unscale.astype(dtype)

    def elsewhere(a: Array, b: Array, unscale: Array) -> Array:
        product = lax.dot_general(
            a.astype(jnp.float32),
            b.astype(jnp.float32),
            _DIMENSIONS,
            precision=lax.Precision.HIGHEST,
        )
        return (product * unscale).astype(dtype)

    found: Array = lax.platform_dependent(a, b, unscale, cuda=cuda, default=elsewhere)
    return found
