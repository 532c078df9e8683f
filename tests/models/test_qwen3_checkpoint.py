"""Loading a checkpoint into the model's parameters: every leaf, and the memory that it takes."""

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.qwen3.argument_bytes import weight_bytes
from models.qwen3.checkpoint import load_params as loading
from models.qwen3.checkpoint.leaf_tensors import leaves
from models.qwen3.checkpoint.load_params import (
    PIECE_BYTES,
    CheckpointError,
    load_params,
)
from models.qwen3.checkpoint.random_checkpoint import SMALL, write_random_checkpoint
from models.qwen3.checkpoint.safetensors_files import SINGLE
from models.qwen3.config import Qwen3Config
from models.qwen3.steps import abstract_model

pytestmark = [pytest.mark.jax, pytest.mark.slow]

CONFIG = replace(SMALL, num_hidden_layers=2, tie_word_embeddings=False)
NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model") / "model", CONFIG, shards=3)


@pytest.fixture(scope="module")
def tensors(folder: Path) -> dict[str, Any]:
    """The tensors as read by the safetensors library."""
    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def expected_params(tensors: dict[str, Any], dtype: str) -> dict[Any, Any]:
    """The expected pytree, written out."""

    def leaf(*names: str) -> Any:
        return np.concatenate([tensors[f"{name}.weight"].astype(NUMPY[dtype]) for name in names])

    def layer(n: int) -> dict[str, Any]:
        attention, mlp = f"model.layers.{n}.self_attn", f"model.layers.{n}.mlp"
        return {
            "input_norm": {"scale": leaf(f"model.layers.{n}.input_layernorm")},
            "attention": {
                "qkv_proj": {"weight": leaf(*(f"{attention}.{name}_proj" for name in "qkv"))},
                "q_norm": {"scale": leaf(f"{attention}.q_norm")},
                "k_norm": {"scale": leaf(f"{attention}.k_norm")},
                "o_proj": {"weight": leaf(f"{attention}.o_proj")},
            },
            "post_attention_norm": {"scale": leaf(f"model.layers.{n}.post_attention_layernorm")},
            "mlp": {
                "gate_up_proj": {"weight": leaf(f"{mlp}.gate_proj", f"{mlp}.up_proj")},
                "down_proj": {"weight": leaf(f"{mlp}.down_proj")},
            },
        }

    return {
        "embed": {"weight": leaf("model.embed_tokens")},
        "layers": {n: layer(n) for n in range(CONFIG.num_hidden_layers)},
        "final_norm": {"scale": leaf("model.norm")},
        "lm_head": {"weight": leaf("lm_head")},
    }


def assert_same(params: Any, expected: Any) -> None:
    """Asserts that structure, dtypes and bits are equal."""
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    leaf_pairs = zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True)
    for leaf, expected_leaf in leaf_pairs:
        assert leaf.dtype == expected_leaf.dtype
        assert leaf.shape == expected_leaf.shape
        assert np.asarray(leaf).tobytes() == expected_leaf.tobytes()


# 1 is less than a row; 5000 is not a multiple of any row, and divides no leaf.
@pytest.mark.parametrize("piece_bytes", [PIECE_BYTES, 5000, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_leaf_holds_its_tensors(
    folder: Path, tensors: dict[str, Any], dtype: str, piece_bytes: int
) -> None:
    config = replace(CONFIG, dtype=dtype)
    params = load_params(folder, config, piece_bytes=piece_bytes, threads=3)
    assert_same(params, expected_params(tensors, dtype))
    assert jax.tree.structure(params) == jax.tree.structure(abstract_model(config)[1])


@pytest.mark.parametrize("stored", ["float16", "float32"])
def test_the_device_rounds_as_numpy_does(tmp_path: Path, stored: str) -> None:
    folder = write_random_checkpoint(tmp_path / "model", replace(CONFIG, dtype=stored), seed=4)
    tensors = load_file(folder / SINGLE)
    for dtype in NUMPY:
        params = load_params(folder, replace(CONFIG, dtype=dtype))
        assert_same(params, expected_params(tensors, dtype))


def test_tensors_of_one_leaf_may_differ_in_dtype(folder: Path, tmp_path: Path) -> None:
    copy = write_random_checkpoint(tmp_path / "model", CONFIG)
    tensors = load_file(copy / SINGLE)
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = tensors[name].astype(np.float32)
    save_file(tensors, copy / SINGLE)
    for piece_bytes in (PIECE_BYTES, 5000):
        params = load_params(copy, CONFIG, piece_bytes=piece_bytes)
        assert_same(params, expected_params(tensors, "bfloat16"))


def test_each_leaf_that_is_on_the_device_is_reported(folder: Path) -> None:
    reported: list[str] = []
    load_params(folder, CONFIG, on_leaf=reported.append)
    assert sorted(reported) == sorted(leaf.path for leaf in leaves(CONFIG))


def test_leaves_are_put_on_the_given_device(folder: Path) -> None:
    device = jax.devices()[-1]
    for where in (device, jax.sharding.SingleDeviceSharding(device)):
        for leaf in jax.tree.leaves(load_params(folder, CONFIG, device=where, piece_bytes=5000)):
            assert leaf.devices() == {device}


def test_parameters_do_not_share_the_files_memory(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    params = load_params(copy, CONFIG)
    before = jax.tree.map(np.array, params)
    for path in copy.glob("*.safetensors"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(b"\xff" * size)
    assert_same(params, before)


def test_a_piece_is_written_in_place() -> None:
    leaf = jnp.zeros((4096, 64))
    address = leaf.unsafe_buffer_pointer()
    written = loading._write_rows(leaf, jnp.ones((2, 64)), np.int32(3))
    assert written.unsafe_buffer_pointer() == address
    assert written.sum() == 128
    assert (written[3:5] == 1).all()


def test_nothing_is_allocated_for_a_bad_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last shard is truncated; the first ones must not be loaded either."""
    copy = shutil.copytree(folder, tmp_path / "model")
    last = max(copy.glob("*.safetensors"))
    os.truncate(last, last.stat().st_size - 2)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("an array was put on the device")

    for module, name in ((jax, "device_put"), (jnp, "zeros"), (loading, "_write_rows")):
        monkeypatch.setattr(module, name, fail)
    with pytest.raises(CheckpointError, match=f"{last.name}: truncated"):
        load_params(copy, CONFIG)
    with pytest.raises(AssertionError, match="put on the device"):
        load_params(folder, CONFIG)


# --- memory --------------------------------------------------------------------------------

# The output head is one of the largest tensors and is loaded last: memory beyond the parameters,
# measured while it is copied, is then in addition to all parameters.
LARGE = Qwen3Config(
    vocab_size=32768,
    hidden_size=512,
    intermediate_size=4096,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    tie_word_embeddings=False,
)
LARGEST_TENSOR_BYTES = 2 * LARGE.vocab_size * LARGE.hidden_size
# Executables and other runtime memory. Far below 1 GiB, so that it does not hide a second copy.
RUNTIME_BYTES = 32 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("large") / "model", LARGE, shards=2)


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is not backed by a file."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return 1024 * int(line.split()[1])


def memory_beyond_parameters(folder: Path, how: str) -> int:
    """Peak anonymous memory while a child process loads, less the bytes of the parameters.

    On a CPU the parameters are anonymous memory too. MALLOC_MMAP_THRESHOLD_ keeps glibc from
    retaining up to 64 MiB of freed memory, which is too much at these sizes.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        ),
        "JAX_PLATFORMS": "cpu",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    command = [sys.executable, str(Path(__file__).with_name("loading_child.py")), str(folder), how]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        before = peak = anonymous_bytes(child.pid)
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.002):
                peak = max(peak, anonymous_bytes(child.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            child.stdin.write("\n")
            child.stdin.flush()
            parameters = child.stdout.readline()
        finally:
            done.set()
            watcher.join()
        child.stdin.write("\n")
    assert int(parameters) == weight_bytes(LARGE)
    return peak - before - int(parameters)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_needs_little_memory_beyond_the_parameters(large: Path) -> None:
    # Pieces are far smaller than the head: only they are in memory beyond the parameters.
    assert memory_beyond_parameters(large, str(4 << 20)) < RUNTIME_BYTES
    # The measurement detects a loader that reads the whole checkpoint.
    bound = LARGEST_TENSOR_BYTES * 6 // 5 + RUNTIME_BYTES
    assert memory_beyond_parameters(large, "at-once") > bound
    # A piece, the runtime's copy of it, and twice that for safety: below 1 GiB for any model.
    assert 4 * PIECE_BYTES < 1 << 30
