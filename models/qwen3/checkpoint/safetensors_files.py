"""Locates a checkpoint's tensors: headers of safetensors files, and their index. Imports no jax.

This module reads the headers itself because errors of the `safetensors` library name neither the
tensor nor the value that is wrong, and because its NumPy tensors are copies of the mapped file.
Format (https://github.com/huggingface/safetensors#format): the header's length in 8 bytes, little
endian; the header, a JSON object; the data, which the tensors cover without gaps or overlaps.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.qwen3.checkpoint.json_file import CheckpointError, JsonFile, parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the library's own limit
MAX_ELEMENTS = 2**63 - 1
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_KEYS = {"dtype", "shape", "data_offsets"}
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
    """The tensors of one safetensors file; reads the header only.

    Raises:
      CheckpointError: the file is truncated, or its header is invalid.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES)
            length = int.from_bytes(start, "little")
            _check_length(path, start, length, file_bytes)
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: not a safetensors file: the header is not a JSON object")
    header = parse_json(text, path=path)
    header.pop(_METADATA, None)
    data_start = _LENGTH_BYTES + length
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    _check_contiguous(path, spans, file_bytes - data_start)
    return {
        name: StoredTensor(
            name=name,
            path=path,
            dtype=header[name]["dtype"],
            shape=tuple(header[name]["shape"]),
            offset=data_start + begin,
        )
        for name, (begin, _) in spans.items()
    }


def _check_length(path: Path, start: bytes, length: int, file_bytes: int) -> None:
    if start == b"version ":
        raise CheckpointError(
            f"{path}: this is a Git LFS pointer, not the file's content; fix: `git lfs pull`"
        )
    if len(start) < _LENGTH_BYTES:
        raise CheckpointError(
            f"{path}: truncated: expected at least {_LENGTH_BYTES} bytes, found {file_bytes}"
        )
    limit = min(file_bytes - _LENGTH_BYTES, MAX_HEADER_BYTES)
    if length > limit:
        raise CheckpointError(
            f"{path}: truncated, or not a safetensors file: expected a header of at most {limit} "
            f"bytes, found a header length of {length} bytes"
        )


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """A tensor's data_offsets, checked against its dtype and shape."""

    def wrong(problem: str) -> CheckpointError:
        return CheckpointError(f"{path}: tensor {name}: {problem}")

    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        raise wrong(f"expected an object with {', '.join(sorted(_KEYS))}, found {entry!r:.200}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise wrong(f"dtype {dtype!r:.100} is not supported; expected one of {', '.join(ITEMSIZE)}")
    if not _are_sizes(shape) or math.prod(shape) > MAX_ELEMENTS:
        raise wrong(f"expected a shape, found {shape!r:.200}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"expected data_offsets [begin, end], found {offsets!r:.200}")
    begin, end = offsets
    expected = math.prod(shape) * ITEMSIZE[dtype]
    if end - begin != expected:
        raise wrong(
            f"data_offsets {offsets} span {end - begin} bytes, but {dtype}{shape} has {expected}"
        )
    return begin, end


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_contiguous(path: Path, spans: dict[str, tuple[int, int]], data_bytes: int) -> None:
    """Raises unless the tensors cover the data exactly, without gaps or overlaps."""
    expected, previous = 0, "the header"
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != expected:
            relation = "overlaps" if begin < expected else "leaves a gap after"
            raise CheckpointError(
                f"{path}: tensor {name} {relation} {previous}: expected data offset {expected}, "
                f"found {begin}"
            )
        if end > data_bytes:
            raise CheckpointError(
                f"{path}: truncated: tensor {name} ends at data offset {end}, but the file has "
                f"{data_bytes} bytes of data"
            )
        expected, previous = end, f"tensor {name}"
    if expected != data_bytes:
        raise CheckpointError(
            f"{path}: {data_bytes - expected} bytes after {previous} belong to no tensor"
        )


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
