"""Random inputs for a built executable.

XLA stores typed PRNG keys in arrays of another shape and dtype than jax's.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from xlapipe.errors import WorkloadError
from xlapipe.plans.program import ArgumentLeaf

_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")
_RANDOM_SCALE = np.float32(0.02)


def random_inputs(seed: int, arguments: Sequence[ArgumentLeaf]) -> dict[int, np.ndarray[Any, Any]]:
    """Values of the program's parameters, by parameter number."""
    leaves = {
        leaf.parameter_number: leaf for leaf in arguments if leaf.parameter_number is not None
    }
    seeds = ([seed, number] for number in range(len(leaves)))
    with ThreadPoolExecutor() as pool:  # numpy's generators release the interpreter lock
        return dict(zip(leaves, pool.map(_random_value, leaves.values(), seeds), strict=True))


def _random_value(leaf: ArgumentLeaf, seed: list[int]) -> np.ndarray[Any, Any]:
    """Normally distributed floats of scale 0.02; for integers, small values without repetition.

    Equal indices would make a scatter's result depend on the order of its threads.
    """
    generator = np.random.default_rng(seed)
    stored = stored_array(leaf.shape, leaf.dtype)
    shape, dtype = stored.shape, stored.dtype
    if jax.numpy.issubdtype(dtype, np.integer):
        count = int(np.prod(shape))
        values = generator.permutation(count) if count > 1 else generator.integers(0, 16, count)
        return values.reshape(shape).astype(dtype)
    if dtype == np.bool_:
        return np.asarray(generator.integers(0, 2, shape)).astype(dtype)
    return np.asarray(generator.standard_normal(shape, np.float32) * _RANDOM_SCALE).astype(dtype)


def stored_array(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    """The array that holds a leaf.

    Args:
      dtype: jax's name; that of a typed PRNG key is e.g. `key<fry>`.

    >>> stored_array((4,), "key<fry>")
    ShapeDtypeStruct(shape=(4, 2), dtype=uint32)
    """
    if not dtype.startswith("key<"):
        return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype))
    for implementation in _KEYS:
        key = jax.eval_shape(lambda name=implementation: jax.random.key(0, impl=name))
        if str(key.dtype) == dtype:
            words = jax.eval_shape(jax.random.key_data, key)
            return jax.ShapeDtypeStruct((*shape, *words.shape), words.dtype)
    raise WorkloadError(
        f"a PRNG key of type {dtype}, expected one of {', '.join(_KEYS)}; fix: pass the key's "
        "words (jax.random.key_data), and make the key in the step"
    )
