"""Reads a checkpoint in Hugging Face form into the model's parameters, leaf by leaf.

Files are mapped, and copied to the device in pieces of PIECE_BYTES at most. Host memory, mapped
pages aside, holds one piece and the copy that the runtime makes of it, however large the model.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Shaped

from models.qwen3.checkpoint.config_json import read_config
from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.leaf_tensors import Bits, mapped, stored_leaves
from models.qwen3.checkpoint.safetensors_files import StoredTensor
from models.qwen3.config import Qwen3Config
from models.qwen3.steps import Params, abstract_model

__all__ = ["PIECE_BYTES", "CheckpointError", "checkpoint_bytes", "load_params"]

PIECE_BYTES = 128 << 20
_DTYPES = {"BF16": jnp.bfloat16, "F16": jnp.float16, "F32": jnp.float32}

Device: TypeAlias = jax.Device | jax.sharding.Sharding


def load_params(
    folder: Path,
    config: Qwen3Config,
    *,
    device: Device | None = None,
    on_leaf: Callable[[str, int], None] | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Params:
    """The checkpoint's weights as the parameters of `steps.abstract_model(config)`.

    Every header is checked before anything is put on the device.

    Args:
      folder: a checkpoint; see `safetensors_files` and `weights`.
      config: of the model to run, in whose dtype the leaves are; the device converts, rounding to
        the nearest, ties to even.
      device: jax's default one, unless given.
      on_leaf: called with the path of each leaf once it is on the device, and with its bytes in
        the files; these add up to `checkpoint_bytes`.
      piece_bytes: of the pieces in which a large leaf is copied; at least a row is.

    Raises:
      CheckpointError: the checkpoint is damaged, or not of `config`.
    """
    stored = stored_leaves(folder, config)

    def load(path: tuple[Any, ...], struct: jax.ShapeDtypeStruct) -> Array:
        name = ".".join(str(key.key) for key in path)
        leaf = _load_leaf(stored[name], struct, device, piece_bytes)
        if on_leaf is not None:
            on_leaf(name, sum(tensor.stored_bytes for tensor in stored[name]))
        return leaf

    params: Params = jax.tree_util.tree_map_with_path(load, abstract_model(config)[1])
    return params


def checkpoint_bytes(folder: Path) -> int:
    """Bytes that `load_params` reports while it loads: of the tensors in the files.

    Raises:
      CheckpointError: as `load_params` would.
    """
    config = read_config(folder, dtype="float32")  # any: it is the files' own that count
    stored = stored_leaves(folder, config)
    return sum(tensor.stored_bytes for tensors in stored.values() for tensor in tensors)


def _load_leaf(
    tensors: Sequence[StoredTensor],
    struct: jax.ShapeDtypeStruct,
    device: Device | None,
    piece_bytes: int,
) -> Array:
    """One leaf on the device. Waits for each copy, so that no second piece is in memory."""
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
    """The leaf with the piece, in the leaf's dtype, from row `start` on; written in place."""
    return jax.lax.dynamic_update_slice_in_dim(leaf, piece.astype(leaf.dtype), start, axis=0)


def _pieces(
    tensors: Sequence[StoredTensor], piece_bytes: int
) -> Iterator[tuple[np.int32, npt.NDArray[Any]]]:
    """First row and rows of each piece of a leaf, in the checkpoint's dtype.

    The pieces of a run of tensors of one dtype have the same shape, so that one executable writes
    them all; the last one goes back over rows of the one before.
    """
    first = 0
    for name, group in groupby(tensors, key=lambda tensor: tensor.dtype):
        run = [mapped(tensor) for tensor in group]
        rows = sum(map(len, run))
        row_bytes = run[0][0].nbytes
        count = min(rows, max(1, piece_bytes // row_bytes))
        for start in range(0, rows, count):
            at = min(start, rows - count)
            yield np.int32(first + at), _rows(run, at, count).view(_DTYPES[name])
        first += rows


def _rows(run: Sequence[Bits], start: int, count: int) -> Bits:
    """A copy of rows start to start + count of the stacked tensors.

    A copy also where one tensor holds them all: on a CPU a device array may be the memory that it
    was made from, and must not be a file's.
    """
    rows = np.empty((count, *run[0].shape[1:]), run[0].dtype)
    before = 0
    for tensor in run:
        begin, end = max(start, before), min(start + count, before + len(tensor))
        if begin < end:
            rows[begin - start : end - start] = tensor[begin - before : end - before]
        before += len(tensor)
    return rows
