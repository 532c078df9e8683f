"""Compiling for the GPUs of several hosts, none of which is attached."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.dump.dump import Dump, open_dump

pytestmark = pytest.mark.jax

CACHE_BYTES = 64 * 1024 * 2


@pytest.fixture
def dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Dump]:
    def compile_one(name: str, *arguments: str) -> Dump:
        monkeypatch.chdir(STEPS)
        assert main(["dump", f"broken:{name}", "--out", str(tmp_path), "--json", *arguments]) == 0
        (row,) = json.loads(capsys.readouterr().out)["dumps"]
        return open_dump(Path(row["path"]))

    return compile_one


def test_a_topology_gives_a_workload_its_devices(dump: Callable[..., Dump]) -> None:
    over = dump("over", "--topology", "2x4")
    assert (over.manifest.mesh, over.manifest.topology) == ({"d": 8}, "2x4")
    assert over.path.name.startswith("h200-2x4-auto-jax")
    assert over.plan.totals.parameter_bytes == CACHE_BYTES // 8
    assert "devices: 2x4, mesh d=8\n" in (over.path / "plan.txt").read_text()
    # The output has no spec, so its bytes come from the plan: those on one device.
    assert [leaf.size_bytes for leaf in over.manifest.outputs] == [CACHE_BYTES // 8]


def test_without_a_topology_a_mesh_is_on_one_host(
    dump: Callable[..., Dump], capsys: pytest.CaptureFixture[str]
) -> None:
    sharded = dump("sharded")
    assert sharded.manifest.topology == "1x2"
    assert sharded.path.name.startswith("h200-1x2-auto-jax")
    assert main(["show", str(sharded.path), "--collectives"]) == 0
    assert "sharded for h200 1x2, GEMM policy auto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["broken:sharded", "--topology", "1x8"], ["mesh (d=2) has 2 devices", "1x8 has 8"]),
        (["broken:good", "--topology", "8x8"], ["no mesh, so it uses 1 device,", "8x8 has 64"]),
        (["broken:over(devices=4)", "--topology", "1x2"], ["has 4 devices", "1x2 has 2"]),
        (["broken:over", "--topology", "8"], ["topology '8': expected HOSTSxGPUS"]),
    ],
)
def test_mesh_and_topology_must_have_the_same_device_count(
    arguments: list[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(STEPS)
    assert main(["dump", *arguments, "--out", str(tmp_path), "--json"]) == 2
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    (error,) = answer["errors"] if "errors" in answer else [answer["error"]]
    for part in expected:
        assert part in error
    assert not list(tmp_path.iterdir())
