"""The autotune lock of each program of a build, found by its workload's name."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from models.qwen3.generation.build_locks import locks_for
from xlapipe.dump.autotune_lock import LOCK, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax

GOLDENS = Path(__file__).parents[2] / "hlo_dumps"
PROGRAMS = {
    "decode": WorkloadReference("decode", "models.qwen3.workloads:qwen3_generate"),
    "prompts-128": WorkloadReference("prompts-128", "models.qwen3.workloads:qwen3_prompts"),
}


def lock_of(workload: str, folder: Path) -> Path:
    """A lock for `workload`; its results are another workload's and are not used."""
    (golden,) = (GOLDENS / "qwen3-decode").glob(f"h100_sxm-auto-tuned-*/{LOCK}")
    path = folder / f"{workload}.json"
    path.write_bytes(replace(read_lock(golden), workload=workload).to_bytes())
    return path


def test_locks_are_found_by_their_workload(tmp_path: Path) -> None:
    """In files and in folders that also contain locks of other workloads."""
    named = {
        "decode": lock_of("qwen3-generate", tmp_path),
        "prompts-128": lock_of("qwen3-prompts", tmp_path),
    }
    assert locks_for(PROGRAMS, list(named.values())) == named
    folder = tmp_path / "locks"
    for number, path in enumerate([*named.values(), lock_of("qwen3-step", tmp_path)]):
        (folder / str(number)).mkdir(parents=True)
        shutil.copy(path, folder / str(number) / LOCK)
    locks = locks_for(PROGRAMS, [folder])
    assert locks == {"decode": folder / "0" / LOCK, "prompts-128": folder / "1" / LOCK}
    assert locks_for(PROGRAMS, []) == {}


def test_a_program_needs_exactly_one_lock(tmp_path: Path) -> None:
    decode, prompts = lock_of("qwen3-generate", tmp_path), lock_of("qwen3-prompts", tmp_path)
    with pytest.raises(XlapipeError, match="no lock for qwen3-prompts, the workload of prompts-1"):
        locks_for(PROGRAMS, [decode])
    with pytest.raises(XlapipeError, match="expected one lock for qwen3-generate, found 2: "):
        locks_for(PROGRAMS, [decode, prompts, decode])
    (tmp_path / "empty").mkdir()
    with pytest.raises(XlapipeError, match=f"the folder contains no {LOCK}"):
        locks_for(PROGRAMS, [tmp_path / "empty"])
    (tmp_path / "x").write_text("{")
    with pytest.raises(XlapipeError, match="not JSON"):
        locks_for(PROGRAMS, [tmp_path / "x"])
