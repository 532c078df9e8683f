"""The float8 linear layer's programs, each broken in one way; at the sizes of dump 004."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.float8_linear import matmul, workloads
from models.float8_linear.layer import Float8Linear
from models.float8_linear.quantise import codes_both_ways
from models.float8_linear.recipe import scaled_dot
from models.float8_linear.sizes import Float8Sizes
from xlapipe import Workload


def _with(make: Callable[[], Workload], name: str, **parts: Any) -> Workload:
    """The workload, traced with other parts than `matmul`'s own."""
    good = make()

    @wraps(good.fn)
    def broken(*args: Any) -> Any:
        kept = {part: getattr(matmul, part) for part in parts}
        for part, other in parts.items():
            setattr(matmul, part, other)
        try:
            return good.fn(*args)
        finally:
            for part, own in kept.items():
                setattr(matmul, part, own)

    return replace(good, name=f"{good.name}-{name}", fn=broken)


def _watched(make: Callable[[], Workload]) -> Workload:
    """Every matrix that comes in is given back in float32 too, and there is one gemm more.

    Nothing is donated: readers of what is written over read a copy.
    """
    good = make()

    @wraps(good.fn)
    def watched(*args: Any) -> Any:
        matrices = [leaf for leaf in jax.tree.leaves(args) if leaf.ndim == 2]
        wide = [lax.optimization_barrier(leaf.astype(jnp.float32)) for leaf in matrices]
        return good.fn(*args), wide, matrices[-1].T @ matrices[-1]

    return replace(good, name=f"{good.name}-watched", fn=watched, donate_argnums=())


def dequantised_dot(a: Any, b: Any, unscale: Any, *, dtype: Any, fast_accumulation: bool) -> Any:
    """The codes are widened before they are multiplied."""
    wide = lax.optimization_barrier((a.astype(dtype), b.astype(dtype)))
    return (wide[0] @ wide[1].T) * unscale.astype(dtype)


def wide_dot(a: Any, b: Any, unscale: Any, *, dtype: Any, fast_accumulation: bool) -> Any:
    """The product is written in float32, and narrowed by a kernel of its own."""
    wide = scaled_dot(a, b, unscale, dtype=jnp.float32, fast_accumulation=fast_accumulation)
    return lax.optimization_barrier(wide).astype(dtype)


def other_accumulation(a: Any, b: Any, unscale: Any, *, dtype: Any, fast_accumulation: bool) -> Any:
    return scaled_dot(a, b, unscale, dtype=dtype, fast_accumulation=not fast_accumulation)


def quantised_again(t: Any, scale: Any, dtype: Any) -> Any:
    """The transpose comes from a reading of its own, as in dump 004."""
    again = lax.optimization_barrier(scale)
    return codes_both_ways(t, scale, dtype)[0], codes_both_ways(t, again, dtype)[1]


FORWARD = workloads.float8_linear_forward
BACKWARD = workloads.float8_linear_backward
STEP = workloads.float8_linear_step
BROKEN = {
    "dequantised": {"scaled_dot": dequantised_dot},
    "wide": {"scaled_dot": wide_dot},
    "other-accumulation": {"scaled_dot": other_accumulation},
    "quantised-again": {"codes_both_ways": quantised_again},
}
forward_dequantised, forward_wide, forward_other, forward_again = (
    partial(_with, FORWARD, name, **parts) for name, parts in BROKEN.items()
)
backward_dequantised, backward_wide, backward_other, _ = (
    partial(_with, BACKWARD, name, **parts) for name, parts in BROKEN.items()
)
step_dequantised, step_wide, step_other, step_again = (
    partial(_with, STEP, name, **parts) for name, parts in BROKEN.items()
)


forward_watched, backward_watched, step_watched = (
    partial(_watched, make) for make in (FORWARD, BACKWARD, STEP)
)


def backward_undonated() -> Workload:
    return replace(BACKWARD(), name="float8-linear-backward-undonated", donate_argnums=())


def forward_in_place() -> Workload:
    """Gives x back, changed in place, and scales of every row."""
    good = FORWARD()

    def forward(x: Any, kernel: Any) -> Any:
        y, residuals = matmul.forward(x, kernel)
        rows = {
            name: jnp.broadcast_to(value, (2048,)) if value.ndim == 0 else value
            for name, value in residuals.items()
        }
        return y, rows, x * 2

    return replace(good, name="float8-linear-forward-in-place", fn=forward, donate_argnums=0)


def smaller(make: Callable[..., Workload]) -> Workload:
    """A program of other sizes than its expectations are of."""
    small = make(Float8Sizes(rows=1024, in_features=2048, out_features=2048))
    return replace(small, name=f"{small.name}-smaller")


forward_smaller, backward_smaller, step_smaller = (
    partial(smaller, make) for make in (FORWARD, BACKWARD, STEP)
)


def _layer(otherwise: Any) -> Workload:
    """`Float8Linear` as a user has it, for whatever GPU."""
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
