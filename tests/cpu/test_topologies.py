"""Programs over the GPUs of several hosts, none of which is here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlapipe.cli import main
from xlapipe.dumps.dump import Dump, open_dump

HERE = Path(__file__).parent
CACHE_BYTES = 64 * 1024 * 2


@pytest.fixture
def dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Dump]:
    def compile_one(name: str, *arguments: str) -> Dump:
        monkeypatch.chdir(HERE)
        assert main(["dump", f"broken:{name}", "--out", str(tmp_path), "--json", *arguments]) == 0
        (row,) = json.loads(capsys.readouterr().out)["dumps"]
        return open_dump(Path(row["path"]))

    return compile_one


def test_a_topology_gives_a_workload_its_devices(dump: Callable[..., Dump]) -> None:
    found = dump("over", "--topology", "2x4")
    assert (found.manifest.mesh, found.manifest.topology) == ({"d": 8}, "2x4")
    assert found.path.name.startswith("h200-2x4-auto-jax")
    assert found.plan.totals.parameter_bytes == CACHE_BYTES // 8
    assert "devices: 2x4, mesh d=8\n" in (found.path / "plan.txt").read_text()
    # No spec says where the output lies: the bytes are those of the plan, not of the whole.
    assert [leaf.size_bytes for leaf in found.manifest.outputs] == [CACHE_BYTES // 8]


def test_without_one_a_mesh_lies_on_one_host(
    dump: Callable[..., Dump], capsys: pytest.CaptureFixture[str]
) -> None:
    found = dump("sharded")
    assert found.manifest.topology == "1x2"
    assert found.path.name.startswith("h200-1x2-auto-jax")
    assert main(["show", str(found.path)]) == 0
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
def test_devices_that_disagree_are_refused(
    arguments: list[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(HERE)
    assert main(["dump", *arguments, "--out", str(tmp_path), "--json"]) == 2
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    (error,) = answer["errors"] if "errors" in answer else [answer["error"]]
    for part in expected:
        assert part in error
    assert not list(tmp_path.iterdir())
