"""Per-tensor dynamic float8 scaling: torchao's recipe, as in reference dump 004.

Forward operands are e4m3fn, gradients e5m2. Codes are `clip(t * scale)`, so that the largest
magnitude of the tensor becomes the largest of the format; a product of codes is divided by both
scales. Non-finite inputs give non-finite products: a NaN makes the scale and every code NaN; an
infinity makes the scale 0, the codes of finite elements 0, and its own code NaN.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

E4M3 = jnp.float8_e4m3fn
E5M2 = jnp.float8_e5m2
# Lower bound of the largest magnitude: gives a tensor of zeros a finite scale.
MIN_AMAX = 1e-12

_DIMENSION_NUMBERS = (((1,), (1,)), ((), ()))
# The CUDA plugin of jax 0.12.0.1 rejects float8 dot algorithms ("failed to legalize operation
# 'vhlo.dot_general_v2'"). Operand precision selects the same accumulation in cuBLASLt there, but
# allows XLA to choose Triton.
_SUPPORTS_DOT_ALGORITHM = jax.__version_info__ < (0, 12)


def largest(dtype: Any) -> float:
    """The largest finite magnitude: 448 for e4m3fn, 57344 for e5m2."""
    return float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]


def scale_of(t: Float[Array, "*S"], dtype: Any) -> Float[Array, ""]:
    """`largest(dtype) / max(max(|t|), 1e-12)` in float32, rounded once.

    With jax_enable_x64 the division is in float64, as in torchao. In float32 the result is the
    same on devices that round divisions correctly.
    """
    amax = jnp.max(jnp.abs(t))
    if jax.config.jax_enable_x64:
        quotient = largest(dtype) / jnp.maximum(amax.astype(jnp.float64), MIN_AMAX)
        return quotient.astype(jnp.float32)
    # Python divides in float64: 1e-12 must not be rounded to float32 before the division.
    max_scale = jnp.float32(largest(dtype) / MIN_AMAX)
    amax = amax.astype(jnp.float32)
    return jnp.where(amax < MIN_AMAX, max_scale, largest(dtype) / amax)


def codes_of(t: Float[Array, "*S"], scale: Float[Array, ""], dtype: Any) -> Float[Array, "*S"]:
    """`clip(float32(t) * scale)` as float8: overflow saturates, NaN stays NaN."""
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
    """`a bᵀ * unscale` for float8 codes a and b, in `dtype`.

    On an NVIDIA GPU this is one cuBLASLt float8 gemm, which accumulates in float32 or, with fast
    accumulation, in the tensor cores' narrower format. Other platforms convert the codes to
    float32, which represents them exactly, and multiply in float32.
    """

    def cuda(a: Array, b: Array, unscale: Array) -> Array:
        precision: lax.DotAlgorithmPreset | lax.Precision
        if _SUPPORTS_DOT_ALGORITHM:
            precision = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32
            if fast_accumulation:
                precision = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM
        else:
            precision = lax.Precision.DEFAULT if fast_accumulation else lax.Precision.HIGHEST
        product = lax.dot_general(
            a, b, _DIMENSION_NUMBERS, precision=precision, preferred_element_type=dtype
        )
        # If the product is larger than an operand, XLA moves this factor into the gemm, as that
        # operand's float32 scale. Otherwise the factor is rounded to dtype, as the product is.
        return product * unscale.astype(dtype)

    def other_platform(a: Array, b: Array, unscale: Array) -> Array:
        product = lax.dot_general(
            a.astype(jnp.float32),
            b.astype(jnp.float32),
            _DIMENSION_NUMBERS,
            precision=lax.Precision.HIGHEST,
        )
        return (product * unscale).astype(dtype)

    scaled: Array = lax.platform_dependent(a, b, unscale, cuda=cuda, default=other_platform)
    return scaled
