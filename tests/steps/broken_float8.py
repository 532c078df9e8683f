"""The float8 linear programs, each broken in one way, at the sizes of reference dump 004."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.float8_linear import matmul, workloads
from models.float8_linear.layer import Float8Linear
from models.float8_linear.quantise import codes_and_transpose
from models.float8_linear.recipe import scaled_dot
from models.float8_linear.sizes import Float8Sizes
from xlapipe import Workload


def _with(make: Callable[[], Workload], name: str, **replacements: Any) -> Workload:
    """The workload, traced with functions of `matmul` replaced."""
    good = make()

    @wraps(good.fn)
    def broken(*args: Any) -> Any:
        originals = {function: getattr(matmul, function) for function in replacements}
        for function, replacement in replacements.items():
            setattr(matmul, function, replacement)
        try:
            return good.fn(*args)
        finally:
            for function, original in originals.items():
                setattr(matmul, function, original)

    return replace(good, name=f"{good.name}-{name}", fn=broken)


def _reading_again(make: Callable[[], Workload]) -> Workload:
    """Also returns each input matrix in float32, and computes one gemm more.

    Nothing is donated: XLA would copy a donated input that is read after it is overwritten.
    """
    good = make()

    @wraps(good.fn)
    def reading_again(*args: Any) -> Any:
        matrices = [leaf for leaf in jax.tree.leaves(args) if leaf.ndim == 2]
        wide = [lax.optimization_barrier(leaf.astype(jnp.float32)) for leaf in matrices]
        return good.fn(*args), wide, matrices[-1].T @ matrices[-1]

    return replace(good, name=f"{good.name}-reads-again", fn=reading_again, donate_argnums=())


def dequantised_dot(a: Any, b: Any, unscale: Any, *, dtype: Any, fast_accumulation: bool) -> Any:
    """Converts the codes to bfloat16 before it multiplies them."""
    wide = lax.optimization_barrier((a.astype(dtype), b.astype(dtype)))
    return (wide[0] @ wide[1].T) * unscale.astype(dtype)


def wide_dot(a: Any, b: Any, unscale: Any, *, dtype: Any, fast_accumulation: bool) -> Any:
    """Writes the product in float32, and converts it in a separate kernel."""
    wide = scaled_dot(a, b, unscale, dtype=jnp.float32, fast_accumulation=fast_accumulation)
    return lax.optimization_barrier(wide).astype(dtype)


def other_accumulation(a: Any, b: Any, unscale: Any, *, dtype: Any, fast_accumulation: bool) -> Any:
    return scaled_dot(a, b, unscale, dtype=dtype, fast_accumulation=not fast_accumulation)


def quantised_again(t: Any, scale: Any, dtype: Any) -> Any:
    """Reads the matrix a second time for the transpose, as reference dump 004 does."""
    again = lax.optimization_barrier(scale)
    return codes_and_transpose(t, scale, dtype)[0], codes_and_transpose(t, again, dtype)[1]


STEP = workloads.float8_linear_step
step_dequantised, step_wide, step_other, step_again = (
    partial(_with, STEP, name, **replacements)
    for name, replacements in {
        "dequantised": {"scaled_dot": dequantised_dot},
        "wide": {"scaled_dot": wide_dot},
        "other-accumulation": {"scaled_dot": other_accumulation},
        "quantised-again": {"codes_and_transpose": quantised_again},
    }.items()
)
step_reads_again = partial(_reading_again, STEP)


def step_smaller() -> Workload:
    """A program of sizes that its expectations were not computed for."""
    small = STEP(Float8Sizes(rows=1024, in_features=2048, out_features=2048))
    return replace(small, name=f"{small.name}-smaller")


def _layer(otherwise: Any) -> Workload:
    """`Float8Linear` as in a user's program, compiled for any GPU."""
    from flax import nnx

    def make() -> Float8Linear:
        return Float8Linear(
            64,
            128,
            otherwise=otherwise,
            dtype=jnp.bfloat16,
            param_dtype=jnp.bfloat16,
            rngs=nnx.Rngs(0),
        )

    graphdef, state = nnx.split(nnx.eval_shape(make))

    def apply(params: Any, x: Any) -> Any:
        return nnx.merge(graphdef, params)(x)

    x = jax.ShapeDtypeStruct((4, 32, 64), jnp.bfloat16)
    return Workload(name=f"layer-{otherwise}", fn=apply, args=(nnx.to_pure_dict(state), x))


layer, layer_or_unquantised = partial(_layer, "raise"), partial(_layer, "unquantised")
