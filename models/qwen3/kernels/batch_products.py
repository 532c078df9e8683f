"""Products of weights with one token of each of several sequences: each weight is read once.

A program multiplies a tile of rows with all tokens on tensor cores. Few rows would leave most of
the GPU idle, so that the contracted axis is split over programs too: `batch_product` returns
partial sums, which the kernel that reads them adds.

The equivalents in plain JAX are `Projection`, and `MLP` without `down_proj`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.product_forms import BatchForm, batch_form_of
from models.qwen3.kernels.tiling import LEAST
from models.qwen3.kernels.triton_call import triton_call


@partial(jax.jit, static_argnames=("form", "interpret"))
def batch_product(
    x: Float[Array, "B I"],
    weight: Float[Array, "O I"],
    *,
    form: BatchForm | None = None,
    interpret: bool = False,
) -> Float[Array, "splits B O"]:
    """Partial sums of `x weightᵀ`, float32.

    Args:
      form: None for the one of the weight's shape, whose `splits` is the number of sums.
    """
    form = form or batch_form_of(weight.shape)
    out = jax.ShapeDtypeStruct((form.splits, x.shape[0], weight.shape[0]), jnp.float32)
    return _call(x, weight, (0,), form, lambda sums: sums[0], out, "batch_product", interpret)


@partial(jax.jit, static_argnames=("form", "interpret"))
def batch_swiglu(
    x: Float[Array, "B D"],
    gate_up: Float[Array, "gate_up D"],
    *,
    form: BatchForm | None = None,
    interpret: bool = False,
) -> Float[Array, "B F"]:
    """`silu(gate x) * up x` in x's dtype; gate's F rows are first. Sums and silu in float32.

    Args:
      form: None for the one of the weight's shape.
    """
    features = gate_up.shape[0] // 2

    def swiglu(sums: tuple[Array, ...]) -> Array:
        gate, up = sums
        return gate / (1 + jnp.exp(-gate)) * up

    out = jax.ShapeDtypeStruct((x.shape[0], features), x.dtype)
    form = form or batch_form_of(gate_up.shape, matrices=2)
    return _call(x, gate_up, (0, features), form, swiglu, out, "batch_swiglu", interpret)


def _call(
    x: Float[Array, "B I"],
    weight: Float[Array, "O I"],
    firsts: tuple[int, ...],
    form: BatchForm,
    finish: Callable[[tuple[Array, ...]], Array],
    out: jax.ShapeDtypeStruct,
    name: str,
    interpret: bool,
) -> Array:
    """Runs the kernel: `finish` of x's products with a tile's rows from each of `firsts` on."""
    batch, inputs = x.shape
    tokens = max(LEAST, 1 << (batch - 1).bit_length())
    steps = inputs // form.columns // form.splits

    def kernel(x_ref: Any, weight_ref: Any, out_ref: Any) -> None:
        start, split = pl.program_id(0) * form.rows, pl.program_id(1)
        token = jnp.arange(tokens)
        # Rows past the batch repeat its last token, and are not stored.
        member = jnp.minimum(token, batch - 1)[:, None]

        def add(step: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            column = (split * steps + step) * form.columns
            # Weights are read once per step: they should not evict activations from L2.
            weights = [
                plgpu.load(
                    weight_ref.at[pl.ds(first + start, form.rows), pl.ds(column, form.columns)],
                    eviction_policy="evict_first",
                )
                for first in firsts
            ]
            rows = plgpu.load(x_ref.at[member, column + jnp.arange(form.columns)[None, :]])
            return tuple(
                total + plgpu.dot(tile, rows.T) for total, tile in zip(sums, weights, strict=True)
            )

        nothing = jnp.zeros((form.rows, tokens), jnp.float32)
        sums = lax.fori_loop(0, steps, add, (nothing,) * len(firsts))
        row = (start + jnp.arange(form.rows))[:, None]
        target = ((split,) if len(out.shape) == 3 else ()) + (token[None, :], row)
        mask = jnp.broadcast_to((token < batch)[None, :], nothing.shape)
        plgpu.store(out_ref.at[target], finish(sums).astype(out.dtype), mask=mask)

    product: Array = triton_call(
        kernel,
        out,
        *(x, weight),
        grid=(out.shape[-1] // form.rows, form.splits),
        num_warps=form.warps,
        num_stages=form.stages,
        name=name,
        interpret=interpret,
    )
    return product
