"""Float8 codes of a matrix and of its transpose, in one pass over the matrix."""

from functools import partial
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jaxtyping import Array, Float

from models.float8_linear.recipe import codes_of, largest

# Measured on an H200 for [4096, 8192]: 37.3 µs (3.6 TB/s); nine other tiles took up to 41 µs.
TILE = (64, 128)
WARPS = 4


def codes_and_transpose(
    t: Float[Array, "R C"], scale: Float[Array, ""], dtype: Any
) -> tuple[Float[Array, "R C"], Float[Array, "C R"]]:
    """`codes_of(t)` and its transpose; R and C are multiples of 16.

    On an NVIDIA GPU a Pallas kernel transposes each tile in shared memory. XLA alone would write
    the codes, read them again and transpose them.
    """

    def plain(t: Array, scale: Array) -> tuple[Array, Array]:
        codes = codes_of(t, scale, dtype)
        return codes, codes.T

    both: tuple[Array, Array] = lax.platform_dependent(
        t, scale, cuda=partial(codes_by_kernel, dtype=dtype), default=plain
    )
    return both


def codes_by_kernel(
    t: Float[Array, "R C"], scale: Float[Array, ""], *, dtype: Any, interpret: bool = False
) -> tuple[Float[Array, "R C"], Float[Array, "C R"]]:
    """`codes_and_transpose` by the Pallas kernel.

    Args:
      interpret: run the kernel in Pallas's interpreter, on any backend.
    """
    rows, columns = t.shape
    # A tile's sides must be powers of two: the largest up to TILE that divide the matrix.
    tall, wide = gcd(rows, TILE[0]), gcd(columns, TILE[1])
    call = pl.pallas_call(
        partial(_kernel, dtype=dtype),
        out_shape=(
            jax.ShapeDtypeStruct((rows, columns), dtype),
            jax.ShapeDtypeStruct((columns, rows), dtype),
        ),
        grid=(rows // tall, columns // wide),
        in_specs=[
            pl.BlockSpec((1,), lambda i, j: (0,)),
            pl.BlockSpec((tall, wide), lambda i, j: (i, j)),
        ],
        out_specs=(
            pl.BlockSpec((tall, wide), lambda i, j: (i, j)),
            pl.BlockSpec((wide, tall), lambda i, j: (j, i)),
        ),
        # Selects Triton: the default backend of jax 0.10 is Mosaic GPU.
        compiler_params=pallas_triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="quantise",
    )
    codes, transposed = call(scale.reshape(1), t)
    return codes, transposed


def _kernel(scale_ref: Any, t_ref: Any, codes_ref: Any, transposed_ref: Any, *, dtype: Any) -> None:
    limit = largest(dtype)
    scaled = t_ref[...].astype(jnp.float32) * scale_ref[0]
    # jnp.clip keeps NaNs, but compiles to Triton's minimum and maximum, which drop them.
    clipped = jnp.where(jnp.isnan(scaled), scaled, jnp.clip(scaled, -limit, limit))
    codes = clipped.astype(dtype)
    codes_ref[...] = codes
    transposed_ref[...] = codes.T
