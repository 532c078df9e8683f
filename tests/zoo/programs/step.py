"""Shorthands for the programs: abstract arrays, and a Workload in one line."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xlapipe import Workload


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def step(name: str, fn: Callable[..., Any], args: Sequence[Any], **fields: Any) -> Workload:
    return Workload(name=name, fn=fn, args=tuple(args), **fields)
