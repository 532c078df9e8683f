"""One program, one golden: other processes, folders and hash seeds change nothing."""

from pathlib import Path
from typing import Any

import pytest

from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.normal_form.plan import differences
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = WorkloadReference("decode", "models.qwen3.workloads:qwen3_decode", folder=ROOT)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param("0", marks=pytest.mark.exhaustive),
        pytest.param("1234567", marks=pytest.mark.slow),
    ],
)
def test_process_folder_and_hash_seed(
    seed: str, compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compiled("qwen3-decode", "triton")
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    monkeypatch.chdir(tmp_path)
    job = Job(reference=REFERENCE, target=target_named("h200"), policy=GemmPolicy.TRITON)
    found = make_dump(job, tmp_path / "out")
    assert differences(expected.normal, found.normal, name=seed) == []
    raw = {name for name in expected.files if expected.files[name] != found.files[name]}
    assert raw == set(), "XLA's own files differ too"
