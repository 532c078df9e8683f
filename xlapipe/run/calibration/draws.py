"""What the probes of a calibration draw at random: sizes, shapes and types."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
Rng = np.random.Generator
Drawn = tuple[Any, ...]
"""A function, and an `Arg` for each argument."""


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
