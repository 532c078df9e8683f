"""Locates a checkpoint's tensors: headers of safetensors files, and their index. Imports no jax.

The `safetensors` library checks a header. Tensors are mapped at its offsets, since those of the
library are copies of the file (https://github.com/huggingface/safetensors#format).
"""

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from models.qwen3.checkpoint.json_file import CheckpointError, JsonFile, parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_LFS_POINTER = b"version "
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")

ITEMSIZE = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in a file, row-major and little endian.

    Attributes:
      dtype: safetensors' name of the dtype, a key of ITEMSIZE.
      offset: position of the first byte in the file.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint by name, from model.safetensors if it exists, else from shards.

    Raises:
      CheckpointError: no safetensors files; or a header or an index is damaged, or contradicts the
        files.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected a checkpoint")
    if (folder / SINGLE).exists():
        return read_header(folder / SINGLE)
    if (folder / INDEX).exists():
        return _read_shards(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise CheckpointError(
            f"{folder}: the weights are pickles ({pickles[0]}), which are not supported because "
            "loading one can execute any code; fix: if you trust them, convert them to "
            "safetensors with transformers' save_pretrained"
        )
    raise CheckpointError(f"{folder}: expected {SINGLE} or {INDEX}, found neither")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file; reads the header only, which the library checks.

    Raises:
      CheckpointError: the file is truncated, or its header is invalid.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise CheckpointError(
                    f"{path}: a Git LFS pointer, not the file's content; fix: `git lfs pull`"
                )
            with safe_open(path, "np"):
                file.seek(0)
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                header = parse_json(file.read(length), path=path)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: truncated, or not a safetensors file: {error}; fix: fetch it again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        offset = _LENGTH_BYTES + length + entry["data_offsets"][0]
        shape = tuple(entry["shape"])
        tensors[name] = StoredTensor(
            name=name, path=path, dtype=entry["dtype"], shape=shape, offset=offset
        )
    return tensors


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    index = JsonFile.read(folder / INDEX)
    weight_map = index.data.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise index.wrong("weight_map", "an object of file names")
    shards = {}
    for shard in sorted(set(weight_map.values())):
        # Only plain file names: must not read outside the folder.
        if shard in ("", ".", "..") or Path(shard).name != shard or "\0" in shard:
            raise CheckpointError(
                f"{index.path}: the shard {shard!r} is not a file name in the checkpoint's folder"
            )
        if not (folder / shard).exists():
            raise CheckpointError(f"{index.path}: the shard {shard} does not exist")
        shards[shard] = read_header(folder / shard)
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(f"{index.path}: tensor {name} is not in its shard {shard}")
    for shard, tensors in shards.items():
        for name in tensors:
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / shard}: contains tensor {name}, which is in "
                    f"{weight_map.get(name, 'no shard')} according to {INDEX}"
                )
    return {name: shards[shard][name] for name, shard in weight_map.items()}
