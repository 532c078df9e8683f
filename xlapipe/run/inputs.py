"""Inputs for a built executable: random values, or the arrays of an .npz file.

XLA stores typed PRNG keys in arrays of another shape and dtype than jax's.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from xlapipe.errors import WorkloadError
from xlapipe.plans.program import ArgumentLeaf

_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")
_RANDOM = "random:"
_RANDOM_SCALE = np.float32(0.02)


def read_inputs(spec: str, arguments: Sequence[ArgumentLeaf]) -> dict[int, np.ndarray[Any, Any]]:
    """Values of the program's parameters, by parameter number.

    Args:
      spec: `random:SEED`, or the path of an .npz file whose keys are the arguments' paths.
    """
    leaves = {
        leaf.parameter_number: leaf for leaf in arguments if leaf.parameter_number is not None
    }
    if spec.startswith(_RANDOM):
        seeds = ([_seed(spec), number] for number in range(len(leaves)))
        with ThreadPoolExecutor() as pool:  # numpy's generators release the interpreter lock
            values = list(pool.map(_random_value, leaves.values(), seeds))
    else:
        values = _values_from_file(Path(spec), list(leaves.values()))
    return dict(zip(leaves, values, strict=True))


def _seed(spec: str) -> int:
    try:
        return int(spec.removeprefix(_RANDOM))
    except ValueError:
        raise WorkloadError(
            f"--inputs {spec}: expected an integer after {_RANDOM}; fix: --inputs {_RANDOM}0"
        ) from None


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


def _values_from_file(path: Path, leaves: Sequence[ArgumentLeaf]) -> list[np.ndarray[Any, Any]]:
    values = []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for leaf in leaves:
                if leaf.path not in arrays:
                    raise WorkloadError(
                        f"--inputs {path}: expected an array {leaf.path!r}, found "
                        f"{', '.join(sorted(arrays)[:8])}; fix: add it to the file"
                    )
                values.append(_checked(arrays[leaf.path], leaf, path))
    except (OSError, ValueError, EOFError) as error:
        raise WorkloadError(
            f"--inputs {path}: expected {_RANDOM}SEED or an .npz file: {error}"
        ) from None
    return values


def _checked(value: np.ndarray[Any, Any], leaf: ArgumentLeaf, path: Path) -> np.ndarray[Any, Any]:
    """The array in the leaf's dtype."""
    stored = stored_array(leaf.shape, leaf.dtype)
    shape, dtype = stored.shape, stored.dtype
    if value.dtype.kind == "V" and value.dtype.itemsize == dtype.itemsize:
        value = value.view(dtype)  # .npz holds bfloat16 and float8 as raw bytes
    if value.shape != shape or value.dtype != dtype:
        words = ", the words of its keys (jax.random.key_data)" if shape != leaf.shape else ""
        raise WorkloadError(
            f"--inputs {path}: {leaf.path} is {value.dtype}{list(value.shape)}, expected "
            f"{dtype}{list(shape)}{words}; fix: convert the array in the file"
        )
    return value


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
