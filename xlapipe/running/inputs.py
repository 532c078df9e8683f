"""Inputs for a built executable: random ones, or those of an .npz file."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from xlapipe.errors import WorkloadError
from xlapipe.plan.program import ArgumentLeaf


def read_inputs(spec: str, arguments: Sequence[ArgumentLeaf]) -> dict[int, np.ndarray[Any, Any]]:
    """Values of the parameters by number.

    Raises:
      WorkloadError: an unknown form, or arrays that do not fit the arguments.
    """
    used = [leaf for leaf in arguments if leaf.parameter_number is not None]
    if spec.startswith("random:"):
        try:
            seed = int(spec.removeprefix("random:"))
        except ValueError:
            raise WorkloadError(f"--inputs {spec}: expected a number behind random:") from None
        # numpy's generators let go of the interpreter.
        with ThreadPoolExecutor() as pool:
            made = pool.map(_random, used, ([seed, number] for number in range(len(used))))
            values = {leaf.path: value for leaf, value in zip(used, made, strict=True)}
    else:
        values = _from_file(Path(spec), used)
    return {
        leaf.parameter_number: values[leaf.path]
        for leaf in used
        if leaf.parameter_number is not None
    }


def _random(leaf: ArgumentLeaf, seed: list[int]) -> np.ndarray[Any, Any]:
    """Normal values of scale 0.02; for integers small indices, no two alike in an array.

    Equal indices would make a scatter depend on the order of its threads.
    """
    generator = np.random.default_rng(seed)
    dtype = jax.numpy.dtype(leaf.dtype)
    if jax.numpy.issubdtype(dtype, np.integer):
        count = int(np.prod(leaf.shape))
        values = generator.permutation(count) if count > 1 else generator.integers(0, 16, count)
        return values.reshape(leaf.shape).astype(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, leaf.shape).astype(dtype)
    return (generator.standard_normal(leaf.shape, np.float32) * np.float32(0.02)).astype(dtype)


def _from_file(path: Path, used: Sequence[ArgumentLeaf]) -> dict[str, np.ndarray[Any, Any]]:
    values = {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            for leaf in used:
                if leaf.path not in stored:
                    raise WorkloadError(
                        f"--inputs {path}: no array {leaf.path!r}; it has "
                        f"{', '.join(sorted(stored)[:8])}"
                    )
                values[leaf.path] = _fitting(stored[leaf.path], leaf, path)
    except (OSError, ValueError, EOFError) as error:
        raise WorkloadError(
            f"--inputs {path}: expected random:SEED or an .npz file: {error}"
        ) from None
    return values


def _fitting(value: np.ndarray[Any, Any], leaf: ArgumentLeaf, path: Path) -> np.ndarray[Any, Any]:
    dtype = jax.numpy.dtype(leaf.dtype)
    if value.dtype.kind == "V" and value.dtype.itemsize == dtype.itemsize:
        value = value.view(dtype)  # .npz keeps bfloat16 and float8 as raw bytes
    if value.shape != leaf.shape or value.dtype != dtype:
        raise WorkloadError(
            f"--inputs {path}: {leaf.path} is {value.dtype}{list(value.shape)}, expected "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    return value
