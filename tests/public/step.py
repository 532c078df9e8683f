"""A step of a public project, for jax alone and for xlapipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Step:
    """A function of a public project as its users jit it.

    Attributes:
      fn: jitted by the project's own wrapper, or to be given to `jax.jit`.
      args: abstract or concrete arrays, and what else the function takes.
      donate_argnums: of `jax.jit`; empty if `fn` is jitted.
      mesh: axis sizes by name; None for one device.
      in_specs: a PartitionSpec for each argument; only with `mesh`.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    mesh: Mapping[str, int] | None = None
    in_specs: tuple[Any, ...] | None = field(default=None)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def key() -> jax.ShapeDtypeStruct:
    """A raw PRNG key."""
    return jax.ShapeDtypeStruct((2,), jnp.uint32)
