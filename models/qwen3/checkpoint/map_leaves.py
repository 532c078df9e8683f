"""Loads a Hugging Face checkpoint's leaves from its mapped files, with threads. Imports no jax.

A leaf that is one tensor of the model's dtype is given to the device as the mapped pages. Others
are stacked and converted in host memory, which then holds one leaf per thread.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from models.qwen3.checkpoint.leaf_tensors import WEIGHT_DTYPES, leaves, mapped, stored_leaves
from models.qwen3.checkpoint.safetensors_files import StoredTensor, read_tensors
from models.qwen3.config import Qwen3Config

# For a GPU: one thread copies more slowly than a GPU receives.
GPU_THREADS = 8

T = TypeVar("T")


def map_leaves(
    folder: Path,
    config: Qwen3Config,
    put: Callable[[str, npt.NDArray[Any]], T],
    *,
    on_leaf: Callable[[str, int], None] = lambda path, stored_bytes: None,
    threads: int = GPU_THREADS,
) -> dict[str, T]:
    """Calls `put` with each leaf of the parameters, and returns the results by the leaf's path.

    Checks every header first.

    Args:
      folder: a checkpoint; see `safetensors_files` and `leaf_tensors`.
      config: config of the model to run. Leaves have its dtype, rounded to nearest, ties to even.
      put: copies an array, which may be part of a mapped file, given the leaf's path; called
        from several threads.
      on_leaf: called with the path of each leaf that was put, and with its bytes in the files,
        whose total is `checkpoint_bytes`.
      threads: number of leaves that are put at once.

    Raises:
      CheckpointError: the checkpoint is damaged, or does not match `config`.
    """
    dtype = dtype_named(config.dtype)
    return load_leaves(
        stored_leaves(folder, config),
        lambda path, tensors: put(path, _leaf(tensors, dtype)),
        on_leaf=on_leaf,
        threads=threads,
    )


def load_leaves(
    stored: Mapping[str, tuple[StoredTensor, ...]],
    load: Callable[[str, tuple[StoredTensor, ...]], T],
    *,
    on_leaf: Callable[[str, int], None],
    threads: int,
) -> dict[str, T]:
    """Calls `load` with path and tensors of each leaf, in threads; `on_leaf` as in `map_leaves`."""
    loaded: dict[str, T] = {}
    pool = ThreadPoolExecutor(threads, "loading weights")
    try:
        results = pool.map(load, stored, stored.values())
        for (path, tensors), result in zip(stored.items(), results, strict=True):
            loaded[path] = result
            on_leaf(path, sum(tensor.stored_bytes for tensor in tensors))
    finally:
        pool.shutdown(cancel_futures=True)
    return loaded


def checkpoint_bytes(folder: Path, config: Qwen3Config) -> int:
    """Total bytes of the tensors in the files that the model's leaves are loaded from.

    Reads headers only, and counts the tensors that are there: `map_leaves` checks them.

    Raises:
      CheckpointError: a header or an index is damaged.
    """
    stored = read_tensors(folder)
    names = (name for leaf in leaves(config) for name, _ in leaf.tensors)
    return sum(stored[name].stored_bytes for name in names if name in stored)


def dtype_named(name: str) -> np.dtype[Any]:
    """NumPy's dtype for a config's `dtype`."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _leaf(tensors: Sequence[StoredTensor], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The rows of the tensors in `dtype`; a view of the mapped file if possible."""
    arrays = [mapped(tensor).view(WEIGHT_DTYPES[tensor.dtype]) for tensor in tensors]
    if len(arrays) == 1 and arrays[0].dtype == dtype:
        return arrays[0]
    rows = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), dtype)
    start = 0
    for array in arrays:
        rows[start : start + len(array)] = array
        start += len(array)
    return rows
