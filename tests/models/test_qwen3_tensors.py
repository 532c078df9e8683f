"""Locating a checkpoint's tensors: safetensors headers, indexes, and errors in them."""

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from models.qwen3.argument_bytes import weight_bytes
from models.qwen3.checkpoint.config_files import read_config, read_generation_config
from models.qwen3.checkpoint.json_file import CheckpointError
from models.qwen3.checkpoint.leaf_tensors import LM_HEAD, leaves, mapped, stored_leaves
from models.qwen3.checkpoint.random_checkpoint import (
    SMALL,
    write_random_checkpoint,
)
from models.qwen3.checkpoint.safetensors_files import INDEX, SINGLE, read_header, read_tensors
from models.qwen3.config import CONFIGS

UNTIED = replace(SMALL, tie_word_embeddings=False, num_hidden_layers=2)

# The published number of parameters: safetensors metadata, and `total_size` / 2 of the index files.
PARAMETERS = {
    "0.6b": 596_049_920,
    "1.7b": 1_720_574_976,
    "4b": 4_022_468_096,
    "8b": 8_190_735_360,
    "14b": 14_768_307_200,
    "32b": 32_762_123_264,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("whole") / "model", UNTIED, seed=5)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded") / "model"
    return write_random_checkpoint(folder, UNTIED, seed=5, shards=3)


def write_file(path: Path, header: Any, data: bytes) -> Path:
    """Writes a safetensors file byte by byte."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def change(folder: Path, alter: Callable[[dict[str, Any]], Any]) -> None:
    """Alters the tensors in model.safetensors."""
    with safe_open(folder / SINGLE, "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    alter(tensors)
    save_file(tensors, folder / SINGLE)


# --- reading -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_leaves_have_the_published_number_of_parameters(name: str) -> None:
    config = CONFIGS[name]
    parameters = sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves(config))
    assert parameters == PARAMETERS[name]
    assert parameters * 2 == weight_bytes(config)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_mapped_tensors_equal_those_of_the_safetensors_library(tmp_path: Path, dtype: str) -> None:
    config = replace(SMALL, num_hidden_layers=1, dtype=dtype)
    write_random_checkpoint(tmp_path / "model", config, seed=1)
    tensors = read_tensors(tmp_path / "model")
    with safe_open(tmp_path / "model" / SINGLE, "np") as file:
        assert set(file.keys()) == tensors.keys()
        for name, tensor in tensors.items():
            expected = file.get_tensor(name)
            bits = np.dtype(f"u{expected.itemsize}")
            assert tensor.stored_bytes == expected.nbytes
            assert (mapped(tensor) == expected.view(bits)).all()


def test_shards_give_the_same_tensors_as_one_file(whole: Path, sharded: Path) -> None:
    from_file, from_shards = (stored_leaves(folder, UNTIED) for folder in (whole, sharded))
    assert len({tensor.path for tensors in from_shards.values() for tensor in tensors}) == 3
    assert from_file.keys() == from_shards.keys()
    for path, tensors in from_file.items():
        for a, b in zip(tensors, from_shards[path], strict=True):
            assert (a.name, a.shape, a.dtype) == (b.name, b.shape, b.dtype)
            assert (mapped(a) == mapped(b)).all()


def test_model_safetensors_takes_precedence_over_an_index(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / INDEX).write_text("{")
    assert read_tensors(folder).keys() == read_tensors(whole).keys()


def test_derived_buffers_are_ignored(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change(folder, lambda tensors: tensors.update({name: np.ones(16)}))
    assert name in read_tensors(folder)
    stored = stored_leaves(folder, UNTIED)
    assert all(tensor.name != name for tensors in stored.values() for tensor in tensors)


def test_a_different_head_in_a_tied_model_is_an_error(whole: Path) -> None:
    tied = replace(UNTIED, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="row 0 differs"):
        stored_leaves(whole, tied)


def test_a_tied_head_with_the_embeddings_bits_is_ignored(whole: Path, tmp_path: Path) -> None:
    """Compares bits: -0.0 differs from 0.0, and a NaN equals itself."""
    tied = replace(UNTIED, tie_word_embeddings=True)
    folder = shutil.copytree(whole, tmp_path / "model")

    def equal(tensors: dict[str, Any]) -> None:
        tensors["model.embed_tokens.weight"][300, 5] = np.nan
        tensors["model.embed_tokens.weight"][301, 5] = 0.0
        tensors[LM_HEAD] = tensors["model.embed_tokens.weight"].copy()

    def signed_zero(tensors: dict[str, Any]) -> None:
        tensors[LM_HEAD][301, 5] = -0.0

    def wider(tensors: dict[str, Any]) -> None:
        tensors[LM_HEAD] = tensors[LM_HEAD].astype(np.float32)

    change(folder, equal)
    assert "lm_head.weight" not in stored_leaves(folder, tied)
    change(folder, signed_zero)
    with pytest.raises(CheckpointError, match=r"row 301 differs.*tie_word_embeddings"):
        stored_leaves(folder, tied)
    change(folder, wider)
    with pytest.raises(CheckpointError, match="its dtype is F32, that of the embedding BF16"):
        stored_leaves(folder, tied)


# --- random checkpoints --------------------------------------------------------------------


def test_a_random_checkpoint_is_complete(whole: Path) -> None:
    assert read_config(whole) == UNTIED
    tokenizer = Tokenizer.from_file(str(whole / "tokenizer.json"))
    special = [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
    assert read_generation_config(whole).eos_token_ids == tuple(special)
    assert tokenizer.get_vocab_size() <= UNTIED.vocab_size
    assert (
        "<|im_start|>" in json.loads((whole / "tokenizer_config.json").read_text())["chat_template"]
    )
    assert [path.name for path in whole.parent.iterdir()] == ["model"]


# --- tensors that do not match the config --------------------------------------------------


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (lambda t: t.pop("model.norm.weight"), r"tensor model\.norm\.weight is missing"),
        (
            lambda t: [t.pop(name) for name in list(t) if ".layers.1." in name],
            r"11 tensors \(model\.layers\.1\.[^)]*, …\) are missing",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(4)}),
            r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is in the checkpoint, but not in",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.experts.0.gate_proj.weight": np.zeros(4)}),
            r"experts\.0\.gate_proj\.weight is in the checkpoint",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros((1, 64), np.float32)}),
            r"safetensors: tensor model\.norm\.weight: expected shape \[64\] .*found \[1, 64\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(64, np.int8)}),
            r"tensor model\.norm\.weight: expected one of BF16, F16, F32, found I8",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(64, np.float64)}),
            r"tensor model\.norm\.weight: expected one of BF16, F16, F32, found F64",
        ),
    ],
)
def test_tensors_that_do_not_match_the_model_are_errors_that_name_them(
    whole: Path, tmp_path: Path, alter: Callable[[dict[str, Any]], Any], expected: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder, alter)
    with pytest.raises(CheckpointError, match=expected):
        stored_leaves(folder, UNTIED)


def test_a_config_with_other_sizes_is_an_error(whole: Path) -> None:
    with pytest.raises(CheckpointError, match=r"q_proj\.weight: expected shape \[192, 64\] .*128"):
        stored_leaves(whole, replace(UNTIED, num_attention_heads=6))
    with pytest.raises(CheckpointError, match=r"11 tensors .*layers\.1.*num_hidden_layers=1"):
        stored_leaves(whole, replace(UNTIED, num_hidden_layers=1))


# --- invalid files -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": entry([2], 0, 8)}, bytes(7)),
        ({"a": entry([2], 0, 8)}, bytes(9)),
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
        ({"a": entry([2**40, 2**40], 0, 8)}, bytes(8)),
        ({"a": entry([2], 0, 8, "Q4")}, bytes(8)),
        (b"[]", b""),
    ],
)
def test_an_invalid_file_is_an_error_that_names_it(
    tmp_path: Path, header: Any, data: bytes
) -> None:
    path = write_file(tmp_path / SINGLE, header, data)
    with pytest.raises(
        CheckpointError, match=f"^{re.escape(str(path))}: .*not a safetensors file.*fix: "
    ):
        read_tensors(tmp_path)


def test_a_git_lfs_pointer_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        read_tensors(tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small safetensors file."""
    folder = tmp_path_factory.mktemp("plain")
    save_file({"a": np.ones((2, 3)), "b": np.ones(4, np.uint8)}, folder / SINGLE)
    return folder


@given(data=st.data())
def test_damaged_files_give_correct_tensors_or_a_checkpoint_error(
    plain: Path, data: st.DataObject
) -> None:
    """Changes one byte of the header, or truncates the file; no other error is allowed."""
    good = (plain / SINGLE).read_bytes()
    header_bytes = 8 + struct.unpack("<Q", good[:8])[0]
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        at = data.draw(st.integers(0, header_bytes - 1))
        bad = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    path = plain / "damaged.safetensors"
    path.write_bytes(bad)
    try:
        tensors = read_header(path)
    except CheckpointError as error:
        assert str(path) in str(error)
    else:
        data_bytes = sum(tensor.stored_bytes for tensor in tensors.values())
        assert max(t.offset + t.stored_bytes for t in tensors.values()) == len(bad)
        assert data_bytes == len(bad) - header_bytes


# --- folders -------------------------------------------------------------------------------


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"expected {SINGLE} or {INDEX}, found neither"):
        read_tensors(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere: no such folder"):
        read_tensors(tmp_path / "nowhere")
    (tmp_path / SINGLE).mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-2.bin", "a.pth"])
def test_pickles_are_an_error_that_names_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"pickles \({name}\).*not supported.*safetensors"):
        read_tensors(tmp_path)


SHARD = "model-00002-of-00003.safetensors"


def retarget(shard: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["weight_map"].update({"model.norm.weight": shard})


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (retarget("model-9.safetensors"), "the shard model-9.safetensors does not exist"),
        (retarget("../model.safetensors"), r"shard '\.\./model\.safetensors' is not a file name"),
        (retarget("/etc/passwd"), "shard '/etc/passwd' is not a file name"),
        (retarget(".."), r"shard '\.\.' is not a file name"),
        (retarget("a\0b"), "is not a file name"),
        (retarget(3), "weight_map: expected an object of file names"),
        (retarget(SHARD), f"tensor model.norm.weight is not in its shard {SHARD}"),
        (
            lambda index: index["weight_map"].pop("model.norm.weight"),
            "contains tensor model.norm.weight, which is in no shard according to model",
        ),
        (lambda index: index.pop("weight_map"), "weight_map: .*found no value"),
    ],
)
def test_an_index_that_contradicts_the_shards_is_an_error(
    sharded: Path, tmp_path: Path, alter: Callable[[dict[str, Any]], Any], expected: str
) -> None:
    folder = shutil.copytree(sharded, tmp_path / "model")
    index = json.loads((folder / INDEX).read_text())
    alter(index)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=expected):
        read_tensors(folder)


def test_a_truncated_shard_is_an_error_that_names_it(sharded: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sharded, tmp_path / "model")
    with (folder / SHARD).open("r+b") as file:
        file.truncate((folder / SHARD).stat().st_size - 1)
    with pytest.raises(CheckpointError, match=f"{SHARD}: truncated"):
        read_tensors(folder)


def test_a_tensor_in_two_shards_is_an_error(sharded: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sharded, tmp_path / "model")
    save_file(
        {"model.norm.weight": np.ones(64, np.float32)}, folder / "model-00000-of-00003.safetensors"
    )
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = "model-00000-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(
        CheckpointError, match=r"contains tensor model\.norm\.weight, which .*00000"
    ):
        read_tensors(folder)


def test_shards_may_be_symbolic_links_as_in_the_hubs_cache(sharded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for path in sharded.iterdir():
        (folder / path.name).symlink_to(path)
    assert stored_leaves(folder, UNTIED)


def test_these_modules_do_not_import_jax() -> None:
    names = ("config_files", "safetensors_files", "leaf_tensors", "random_checkpoint")
    modules = ", ".join(f"models.qwen3.checkpoint.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
