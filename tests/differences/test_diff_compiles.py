"""xlapipe diff of compiles: by XLA option, by GEMM policy, by batch size."""

import json
from pathlib import Path

import pytest

from tests.conftest import Compile
from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.cli.diff import parse_xla_options
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import dump_folder, make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.differences import compare_opened
from xlapipe.dump.dump import open_dump
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax


def test_an_option_is_compared_with_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    options = "xla_gpu_enable_command_buffer=,xla_gpu_enable_triton_gemm=false"
    arguments = ["diff", "--workload", "small_step:small_step", "--options", options]
    assert main([*arguments, "--json", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert "compiling small_step:small_step" in captured.err
    assert data["b"]["name"] == options
    assert data["context"]["option xla_gpu_enable_triton_gemm"] == ["none", "False"]
    assert any(
        change["change"] == "ThunkChange" and change["kind"] == "kCublasLtMatmul"
        for change in data["changes"]
    )
    assert sum(line["delta_bytes"] for line in data["account"]) == data["delta_bytes"]

    # A dump with options is never in the folder of one without.
    plain, other = sorted(item.parent for item in tmp_path.rglob("manifest.json"))
    assert other.name.startswith(f"{plain.name}-options-")
    assert open_dump(plain).manifest.extra_options == {}
    assert "extra_options" not in (plain / "manifest.json").read_text()
    manifest = open_dump(other).manifest
    assert manifest.extra_options == {
        "xla_gpu_enable_command_buffer": "",
        "xla_gpu_enable_triton_gemm": "False",
    }
    assert dict(manifest.options) == manifest.extra_options
    assert "extra options: xla_gpu_enable_command_buffer=, " in (other / "plan.txt").read_text()
    assert dump_folder(tmp_path, manifest) == other
    assert dump_folder(tmp_path, open_dump(plain).manifest) == plain


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    (tmp_path / "file").write_text("no folder")
    arguments = ["diff", "--workload", "small_step:small_step", "--gemm", "cublas,triton"]
    assert main([*arguments, "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.slow
def test_a_larger_batch_is_accounted_for(compiled: Compile, tmp_path: Path) -> None:
    reference = WorkloadReference("test", "batches:decode_of_four", folder=STEPS)
    job = Job(reference=reference, target=target_named("h200"))
    four = make_dump(job, tmp_path, folder=STEPS).dump
    one = compiled("qwen3-decode", "auto").dump
    difference = compare_opened(one, four)
    assert len(difference.programs) == 11
    assert sum(line.delta_bytes for line in difference.account) == difference.delta_bytes
    texts = [sentence.text for sentence in difference.sentences().account]
    assert "2 × argument cache[*]['k']: 4,194,304 B → 16,777,216 B" in texts
    assert not any("split-K" in text for text in texts)


def test_options_are_typed() -> None:
    assert parse_xla_options("xla_a=TRUE, xla_b=1.5,xla_c=a,b") == {
        "xla_a": True,
        "xla_b": 1.5,
        "xla_c": "a,b",
    }


def test_two_workloads_and_a_dump_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both workloads have the same name, and so the same folder of dumps."""
    monkeypatch.chdir(STEPS)
    names = ["named_steps:small", "named_steps:small(rows=32)"]
    assert main(["diff", *names, "--tuning", "none"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"A  {names[0]}", f"B  {names[1]}"]
    assert lines[2].startswith("total ")
    assert any("argument x f32[16,64] → x f32[32,64]" in line for line in lines)

    assert main(["dump", names[0], "--tuning", "none", "--out", str(tmp_path)]) == 0
    (dump,) = tmp_path.glob("*/*")
    capsys.readouterr()
    assert main(["diff", str(dump), names[0], "--tuning", "none"]) == 0
    assert "the plans are the same" in capsys.readouterr().out
    assert main(["diff", str(dump), str(dump), "--gemm", "cublas"]) == 2
    assert "fix: leave them out" in capsys.readouterr().err
