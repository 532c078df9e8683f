"""Which tensor of a checkpoint lies where: headers of safetensors files, and their index. No jax.

The headers are read here rather than by the `safetensors` library, whose errors name neither the
tensor nor what was found, and whose NumPy tensors are copies of the mapped file.
Form: https://github.com/huggingface/safetensors#format — 8 bytes of header length, little endian;
the header, a JSON object; the data, which the tensors' offsets cover without holes or overlaps.
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
      dtype: as safetensors writes it, a key of ITEMSIZE.
      offset: of its first byte, from the file's beginning.
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
    """The tensors of a checkpoint by name: of model.safetensors or, without it, of the shards.

    Raises:
      CheckpointError: no safetensors; a header or an index that is damaged, or contradicts the
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
            f"{folder}: the weights are pickles ({pickles[0]}), which are not supported, since "
            "reading one can run any code; convert them to safetensors where they are trusted: "
            "transformers' save_pretrained writes it"
        )
    raise CheckpointError(f"{folder}: expected {SINGLE} or {INDEX}, found neither")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file; its data are not read.

    Raises:
      CheckpointError: the file is truncated, or its header lies.
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
        raise CheckpointError(f"{path}: not a safetensors file: the header is no JSON object")
    header = parse_json(text, where=path)
    header.pop(_METADATA, None)
    data_start = _LENGTH_BYTES + length
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    _check_cover(path, spans, file_bytes - data_start)
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
            f"{path}: a Git LFS pointer, not the file it stands for; `git lfs pull` fetches that"
        )
    if len(start) < _LENGTH_BYTES:
        raise CheckpointError(
            f"{path}: truncated: expected at least {_LENGTH_BYTES} bytes, found {file_bytes}"
        )
    room = min(file_bytes - _LENGTH_BYTES, MAX_HEADER_BYTES)
    if length > room:
        raise CheckpointError(
            f"{path}: truncated, or not a safetensors file: its header should have {length} "
            f"bytes, and at most {room} can be"
        )


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """A tensor's data_offsets, checked against its dtype and shape."""

    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: tensor {name}: {what}")

    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        raise wrong(f"expected an object with {', '.join(sorted(_KEYS))}, found {entry!r:.200}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise wrong(f"dtype {dtype!r:.100} is not supported; known are {', '.join(ITEMSIZE)}")
    if not _are_sizes(shape) or math.prod(shape) > MAX_ELEMENTS:
        raise wrong(f"expected a shape, found {shape!r:.200}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"expected data_offsets [begin, end], found {offsets!r:.200}")
    begin, end = offsets
    expected = math.prod(shape) * ITEMSIZE[dtype]
    if end - begin != expected:
        raise wrong(
            f"data_offsets {offsets} span {end - begin} bytes, but {dtype}{shape} takes {expected}"
        )
    return begin, end


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _check_cover(path: Path, spans: dict[str, tuple[int, int]], data_bytes: int) -> None:
    """The tensors must lie one after the other, from the first byte of the data to the last."""
    reached, before = 0, "the header"
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != reached:
            what = "overlaps" if begin < reached else "leaves a hole after"
            raise CheckpointError(
                f"{path}: tensor {name} {what} {before}: it should begin at {reached} of the "
                f"data, and begins at {begin}"
            )
        if end > data_bytes:
            raise CheckpointError(
                f"{path}: truncated: tensor {name} ends at {end} of the data, of which the file "
                f"holds {data_bytes} bytes"
            )
        reached, before = end, f"tensor {name}"
    if reached != data_bytes:
        raise CheckpointError(
            f"{path}: {data_bytes - reached} bytes after {before} belong to no tensor"
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
        # A plain name: nothing outside the folder is read.
        if shard in ("", ".", "..") or Path(shard).name != shard or "\0" in shard:
            raise CheckpointError(
                f"{index.path}: the shard {shard!r} is not a file name in the checkpoint's folder"
            )
        if not (folder / shard).exists():
            raise CheckpointError(f"{index.path}: names the shard {shard}, which is not there")
        shards[shard] = read_header(folder / shard)
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(f"{index.path}: tensor {name} should be in {shard}, and is not")
    for shard, tensors in shards.items():
        for name in tensors:
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / shard}: holds tensor {name}, which {INDEX} places in "
                    f"{weight_map.get(name, 'no shard')}"
                )
    return {name: shards[shard][name] for name, shard in weight_map.items()}
