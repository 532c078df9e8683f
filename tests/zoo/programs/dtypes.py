"""One program per dtype: it moves values, whatever arithmetic the dtype has."""

from typing import Any

import jax
import jax.numpy as jnp
from step import f32, step

from xlapipe import Workload


def of(dtype: str) -> Workload:
    """Donates an array of the dtype, slices it, and makes one from float32."""
    kind = getattr(jnp, dtype)

    def fn(x: Any, i: Any, y: Any) -> Any:
        return x[::-1], x[:6], jnp.where(i > 0, x, x[::-1]), y.astype(kind)

    args = [jax.ShapeDtypeStruct((1002,), kind), jax.ShapeDtypeStruct((), jnp.int32), f32(34)]
    return step(f"dtype_{dtype}", fn, args, donate_argnums=0)
