"""A program to be timed: a function and random arguments, which are made when it runs.

Also what probes draw at random: sizes, shapes and types.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
Rng = np.random.Generator
# A function, and an `Arg` for each argument.
Drawn = tuple[Any, ...]
# Values of larger arrays repeat after this number of elements.
_RANDOM_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Arg:
    """A random array.

    Attributes:
      dtype: floats are normal with deviation `scale`, integers are uniform below `below`.
      sharding: over several GPUs; None for the first one.
    """

    shape: tuple[int, ...]
    dtype: Any = jnp.float32
    scale: float = 1.0
    below: int = 2
    sharding: Any = None

    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=self.sharding)

    def make(self) -> Any:
        """The array on the device."""
        dtype = jnp.dtype(self.dtype)
        if dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer):
            values = _uniform(min(self.below, 1 << 31)).astype(dtype)
        else:
            values = (_normal() * self.scale).astype(dtype)
        return jax.device_put(np.resize(values, self.shape), self.sharding)


@cache
def _normal() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(_RANDOM_ELEMENTS, dtype=np.float32)


@cache
def _uniform(below: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, below, _RANDOM_ELEMENTS)


@dataclass(frozen=True)
class TimedProgram:
    """A program: a function, pytrees of `Arg` and XLA's options."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def structs(self) -> tuple[Any, ...]:
        """Shapes and dtypes of the arguments."""
        return tuple(jax.tree.map(Arg.struct, arg) for arg in self.args)

    def make_args(self) -> list[Any]:
        """The arguments on the device."""
        return [jax.tree.map(Arg.make, arg) for arg in self.args]


def size(rng: Rng, least: float, most: float) -> int:
    """Between two powers of two, half of the time a multiple of the largest power that fits."""
    number = round(2 ** rng.uniform(least, most))
    even = 1 << max(0, number.bit_length() - 3)
    return max(1, number // even * even if rng.random() < 0.5 else number)


def shape_of(rng: Rng, axes: int, least: float, most: float) -> tuple[int, ...]:
    """Axes of any sizes, with 2**least to 2**most elements in all."""
    shares = rng.dirichlet([2.0] * axes) * rng.uniform(least, most)
    return tuple(max(2, size(rng, share, share)) for share in shares)


def float_type(rng: Rng) -> Any:
    """float32, and less often bfloat16."""
    return F32 if rng.random() < 0.6 else BF16


def one_of(rng: Rng, choices: Any) -> Any:
    """One of a sequence, all with the same chance."""
    return choices[int(rng.integers(len(choices)))]


def gradient_of_squares(fn: Callable[..., Any], numbers: tuple[int, ...]) -> Callable[..., Any]:
    """The gradient of the sum of squares, with respect to arguments of these numbers."""

    def loss(*args: Any) -> Any:
        return sum((leaf.astype(F32) ** 2).mean() for leaf in jax.tree.leaves(fn(*args)))

    return jax.grad(loss, numbers)
