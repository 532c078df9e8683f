"""`dump --estimate`: XLA's estimates are in the dump, and the plan is that of the golden."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from xlapipe.cli import main
from xlapipe.dump.dump import read_file

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[2]
UNCHANGED = ("thunk_sequence.txt", "live-range.txt", "buffer-assignment.txt")


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["spectral-diffusion-train", "qwen3-step-donated"])
def test_estimates_change_neither_buffers_nor_thunks(
    workload: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    golden = ROOT / "hlo_dumps" / workload / f"h200-triton-jax{version('jaxlib')}"
    if not golden.is_dir():
        pytest.skip(f"{golden} is missing: goldens are kept for another jaxlib")
    monkeypatch.chdir(ROOT)
    arguments = ["--gemm", "triton", "--estimate", "--out", str(tmp_path)]
    assert main(["dump", workload, *arguments]) == 0
    (folder,) = (tmp_path / workload).iterdir()
    # A separate folder: a dump without estimates is never overwritten.
    assert folder.name.startswith(f"{golden.name}-options-")
    for name in UNCHANGED:
        assert read_file(folder, name) == read_file(golden, name), name
    capsys.readouterr()
    assert main(["show", str(folder), "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["estimate_seconds"] > 0
    assert time["estimated_share"] == 1
    assert main(["show", str(golden), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"]["estimate_seconds"] is None
