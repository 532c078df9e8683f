"""Programs unlike the models: one sharded over two GPUs, one with a Pallas kernel."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump

pytestmark = pytest.mark.jax


@pytest.fixture
def dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Compiles a program of broken.py."""

    def compile_one(name: str) -> Any:
        monkeypatch.chdir(STEPS)
        assert main(["dump", f"broken:{name}", "--out", str(tmp_path), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["dumps"]
        return open_dump(Path(row["path"]))

    return compile_one


def test_two_devices(dump: Any) -> None:
    sharded = dump("sharded")
    # Half of bf16[64, 1024] on each device, and an all-reduce of the sum.
    assert sharded.plan.totals.parameter_bytes == 64 * 1024 * 2 // 2
    assert [leaf.size_bytes for leaf in sharded.manifest.arguments] == [64 * 1024 * 2 // 2]
    assert [collective.kind for collective in sharded.plan.collectives or ()] == ["all-reduce"]
    assert sharded.manifest.mesh == {"d": 2}


def test_a_pallas_kernel(dump: Any) -> None:
    pallas = dump("pallas")
    assert pallas.plan.totals.total_allocation_bytes == 3 * 512 * 128 * 4
    calls = [i for i in pallas.plan.instructions.values() if i.custom_call_target]
    # By default jax compiles the kernel with Mosaic GPU in 0.10, and with Triton from 0.11 on.
    (target,) = (call.custom_call_target for call in calls)
    assert target in ("__gpu$xla.gpu.triton", "mosaic_gpu_v2")
    assert any("pallas" in (call.op_name or "") for call in calls)
