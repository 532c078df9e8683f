"""Where the persistent kernel's blocks may not all run at once, it is not launched."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import xlapipe
from models.qwen3.config import QWEN3_0_6B
from models.qwen3.generation import start_loading
from models.qwen3.generation.prebuilt_index import (
    INDEX,
    PrebuiltExecutables,
    index_text,
    read_index,
)
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.kernels.all_layers.residency import why_not_resident
from xlapipe import XlapipeError

pytestmark = pytest.mark.jax

SIZES = GenerationSizes(batch=1, cache_length=64, bucket=16, steps=4, candidates=1)


def no_daemon(tmp_path: Path) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}


def test_a_whole_hopper_gpu_runs_all_blocks_at_once(tmp_path: Path) -> None:
    assert why_not_resident(132, no_daemon(tmp_path)) is None
    assert why_not_resident(128, no_daemon(tmp_path)) is None


@pytest.mark.parametrize(
    ("multiprocessors", "reason"),
    [(127, "127 multiprocessors are available"), (None, "multiprocessors is unknown")],
)
def test_part_of_a_gpu_may_not(multiprocessors: int | None, reason: str, tmp_path: Path) -> None:
    answer = why_not_resident(multiprocessors, no_daemon(tmp_path))
    assert answer is not None and reason in answer


def test_other_processes_under_mps_may_occupy_multiprocessors(tmp_path: Path) -> None:
    limited = {**no_daemon(tmp_path), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
    answer = why_not_resident(132, limited)
    assert answer is not None and "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in answer
    (tmp_path / "control").touch()
    answer = why_not_resident(132, no_daemon(tmp_path))
    assert answer is not None and f"under MPS ({tmp_path})" in answer


@dataclass(frozen=True)
class Device:
    core_count: int


def test_executables_with_the_kernel_are_refused_on_part_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = SimpleNamespace(device=Device(64))
    monkeypatch.setattr(xlapipe, "load", lambda folder, wait: step, raising=False)
    config = replace(QWEN3_0_6B, num_hidden_layers=1)
    prebuilt = PrebuiltExecutables(
        path=tmp_path,
        config=config,
        sizes=SIZES,
        buckets=(16,),
        implementations={"decode": "persistent"},
    )
    with pytest.raises(XlapipeError, match="64 multiprocessors are available; fix: build"):
        start_loading.start_loading(prebuilt, 4)


@pytest.mark.parametrize("decode", ["triton", "persistent"])
def test_the_index_records_the_implementations(decode: str, tmp_path: Path) -> None:
    prebuilt = PrebuiltExecutables(
        path=tmp_path,
        config=QWEN3_0_6B,
        sizes=SIZES,
        buckets=(16, 32),
        implementations={"prompts-16": "triton", "decode": decode},
    )
    (tmp_path / INDEX).write_text(index_text(prebuilt))
    index = read_index(tmp_path, QWEN3_0_6B)
    assert index.persistent_kernel == (decode == "persistent")
    assert index.implementations_for(10) == {"prompts": "triton", "decode": decode}
    assert index.implementations_for(20) is None
