"""Loads a Hugging Face checkpoint into the model's parameters, leaf by leaf.

Files are memory-mapped and copied to the device in pieces of at most PIECE_BYTES. Apart from mapped
pages, host memory holds one piece per thread and the runtime's copy of it, regardless of the
model's size.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Shaped

from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.leaf_tensors import WEIGHT_DTYPES, Bits, mapped, stored_leaves
from models.qwen3.checkpoint.safetensors_files import StoredTensor
from models.qwen3.config import Qwen3Config
from models.qwen3.params import Params, abstract_params

__all__ = ["PIECE_BYTES", "CheckpointError", "load_params"]

PIECE_BYTES = 128 << 20
# For a GPU: a leaf of one piece needs no program that writes pieces, whose compilation takes longer
# than loading the leaf.
GPU_PIECE_BYTES = 512 << 20
# One thread copies more slowly than a GPU receives.
GPU_THREADS = 8

Device: TypeAlias = jax.Device | jax.sharding.Sharding


def load_params(
    folder: Path,
    config: Qwen3Config,
    *,
    device: Device | None = None,
    on_leaf: Callable[[str], None] = lambda path: None,
    piece_bytes: int = PIECE_BYTES,
    threads: int = 1,
) -> Params:
    """The checkpoint's weights as the parameters of `steps.abstract_model(config)`.

    Checks every header before it puts anything on the device.

    Args:
      config: config of the model to run. Leaves have its dtype; the device converts them, rounding
        to nearest, ties to even.
      device: jax's default device if None.
      piece_bytes: a large leaf is copied in pieces of this size, but at least a row at a time.

    Raises:
      CheckpointError: the checkpoint is damaged, or does not match `config`.
    """
    structs, tree = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    struct_of_leaf = {".".join(str(key.key) for key in path): struct for path, struct in structs}
    stored = stored_leaves(folder, config)
    loaded: dict[str, Array] = {}
    pool = ThreadPoolExecutor(threads, "loading weights")
    try:
        results = pool.map(
            lambda path: _load_leaf(stored[path], struct_of_leaf[path], device, piece_bytes), stored
        )
        for path, leaf in zip(stored, results, strict=True):
            loaded[path] = leaf
            on_leaf(path)
    finally:
        pool.shutdown(cancel_futures=True)
    params: Params = jax.tree.unflatten(tree, [loaded[path] for path in struct_of_leaf])
    return params


def _load_leaf(
    tensors: Sequence[StoredTensor],
    struct: jax.ShapeDtypeStruct,
    device: Device | None,
    piece_bytes: int,
) -> Array:
    """One leaf on the device. Waits for each copy, so that only one piece is in host memory."""
    leaf: Array | None = None
    for start, rows in _pieces(tensors, piece_bytes):
        piece: Array = jax.block_until_ready(jax.device_put(rows, device))
        if piece.shape == struct.shape and piece.dtype == struct.dtype:
            return piece
        if leaf is None:
            leaf = jnp.zeros(struct.shape, struct.dtype, device=device)
        leaf = jax.block_until_ready(_write_rows(leaf, piece, start))
    assert leaf is not None
    return leaf


@partial(jax.jit, donate_argnums=0)
def _write_rows(
    leaf: Shaped[Array, "rows *D"], piece: Shaped[Array, "some *D"], start: Shaped[Array, ""]
) -> Shaped[Array, "rows *D"]:
    """Writes a piece into the leaf from row `start` on, in place and in the leaf's dtype."""
    return jax.lax.dynamic_update_slice_in_dim(leaf, piece.astype(leaf.dtype), start, axis=0)


def _pieces(
    tensors: Sequence[StoredTensor], piece_bytes: int
) -> Iterator[tuple[np.int32, npt.NDArray[Any]]]:
    """Yields the first row and the rows of each piece of a leaf, in the checkpoint's dtype.

    All pieces of consecutive tensors of the same dtype have the same shape, so that one executable
    writes them all. For this, the last piece overlaps the one before it.
    """
    first = 0
    for dtype, group in groupby(tensors, key=lambda tensor: tensor.dtype):
        stacked = [mapped(tensor) for tensor in group]
        total = sum(map(len, stacked))
        row_bytes = stacked[0][0].nbytes
        count = min(total, max(1, piece_bytes // row_bytes))
        for start in range(0, total, count):
            start_of_piece = min(start, total - count)
            rows = _copy_rows(stacked, start_of_piece, count)
            yield np.int32(first + start_of_piece), rows.view(WEIGHT_DTYPES[dtype])
        first += total


def _copy_rows(stacked: Sequence[Bits], start: int, count: int) -> Bits:
    """A copy of rows `start` to `start + count` of the stacked tensors.

    Always copies: on a CPU a device array may share the memory of its NumPy source, which must
    not be that of a mapped file.
    """
    rows = np.empty((count, *stacked[0].shape[1:]), stacked[0].dtype)
    first = 0
    for tensor in stacked:
        begin, end = max(start, first), min(start + count, first + len(tensor))
        if begin < end:
            rows[begin - start : end - start] = tensor[begin - first : end - first]
        first += len(tensor)
    return rows
