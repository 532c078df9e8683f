"""Shape and dtype in which XLA stores an array; another one than jax's for typed PRNG keys."""

from typing import Any

import jax
import numpy as np

from xlapipe.errors import WorkloadError

_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def stored_array(shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array that holds a leaf.

    Args:
      dtype: jax's name; that of a typed PRNG key is e.g. `key<fry>`.

    Raises:
      WorkloadError: a key of an implementation that is not jax's own.

    >>> stored_array((4,), "key<fry>")
    ((4, 2), dtype('uint32'))
    """
    if not dtype.startswith("key<"):
        return shape, jax.numpy.dtype(dtype)
    for implementation in _KEYS:
        key = jax.eval_shape(lambda name=implementation: jax.random.key(0, impl=name))
        if str(key.dtype) == dtype:
            words = jax.eval_shape(jax.random.key_data, key)
            return (*shape, *words.shape), words.dtype
    raise WorkloadError(
        f"a PRNG key of type {dtype}, expected one of {', '.join(_KEYS)}; fix: pass the key's "
        "words (jax.random.key_data), and make the key in the step"
    )
