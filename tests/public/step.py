"""A step of a public project, for jax alone and for xlapipe."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh


@dataclass(frozen=True)
class Step:
    """A function of a public project as its users jit it.

    Attributes:
      fn: jitted by the project's own wrapper, or to be given to `jax.jit`.
      args: abstract or concrete arrays, and what else the function takes.
      donate_argnums: of `jax.jit`; empty if `fn` is jitted.
      mesh: axis sizes by name, or a mesh that is set while a jitted `fn` is lowered, whose
        shardings are over it; None for one device.
      in_specs: a PartitionSpec for each argument; only with `mesh`.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    mesh: Mapping[str, int] | Mesh | None = None
    in_specs: tuple[Any, ...] | None = field(default=None)


def made_for(module: ModuleType, name: str, devices: Callable[[], Sequence[Any]]) -> Step:
    """The step of a module.

    Args:
      devices: the first `module.DEVICE_COUNT` are for a step that makes its own mesh.
    """
    count = getattr(module, "DEVICE_COUNT", None)
    step: Step = getattr(module, name)(*([devices()[:count]] if count is not None else []))
    return step


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def key() -> jax.ShapeDtypeStruct:
    """A raw PRNG key."""
    return jax.ShapeDtypeStruct((2,), jnp.uint32)
