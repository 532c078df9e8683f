"""Bad input: exit code 2, one message with the place, the cause and the fix, nothing written."""

import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.compile.failed_child import stopped
from xlapipe.compile.job import Job
from xlapipe.compile.xla_log import last_pass
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.autotune_lock import AutotuneLock
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str], *expected: str, code: int = 2
) -> str:
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.startswith("xlapipe: error: ") or code != 2
    for part in expected:
        assert part in said
    return said


@pytest.fixture
def in_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's folder is the one of broken.py."""
    monkeypatch.chdir(STEPS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dump", "qwen3-stp"], ["unknown workload 'qwen3-stp'", "did you mean", "qwen3-step"]),
        (["dump", "qwen3-step", "--target", "h20"], ["unknown target 'h20'", "h200"]),
        (["dump", "qwen3-step", "--target", "v100"], ["v100", "is not supported", "sm_70"]),
        (["dump", "qwen3-step", "--target-config", "nowhere.txtpb"], ["nowhere.txtpb"]),
        (["dump", "qwen3-step", "--timeout", "-1"], ["--timeout", "above 0"]),
        (["dump", "qwen3-step", "--timeout", "nan"], ["--timeout nan", "above 0"]),
        (["fit", "qwen3-step", "--timeout", "inf"], ["--timeout inf", "above 0"]),
        (["choose", "qwen3-step", "--budget", "nan"], ["--budget nan", "above 0"]),
        (["choose", "qwen3-step", "--memory", "nan"], ["--memory nan", "above 0"]),
        (["dump"], ["no workload given", "xlapipe list"]),
        (["dump", "qwen3-step", "--target", "h200", "--target-config", "x"], ["both given"]),
        (["show", "nowhere"], ["nowhere"]),
        (["check", "nowhere-at-all"], ["unknown workload"]),
        (["explain", "run.log", "--plan", "a", "--workload", "b"], ["two programs", "fix: give"]),
    ],
)
def test_refused_before_compiling(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(arguments, capsys, *expected)


@pytest.mark.usefixtures("in_own_folder")
@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("broken_import:x", ["cannot be loaded", "ModuleNotFoundError", "broken_import.py:3"]),
        ("exits_at_import:x", ["SystemExit: 0", "exits_at_import.py:5", "fix: put what ends"]),
        ("no_such_module:x", ["no_such_module:x cannot be loaded", "fix: install no_such_module"]),
        ("broken:nothing", ["has no attribute 'nothing'"]),
        ("broken:not_a_workload", ["found int"]),
        (
            "broken:write",
            ["needs cache, row", "fix: broken:write(cache=…, row=…), or Workload(fn="],
        ),
        ("broken:raises", ["no config found", "broken.py", "in raises"]),
        ("broken:does_not_lower", ["lowering failed", "in mismatched", 'cache["k"] @ row[:7]']),
        ("broken:concrete_argument", ["argument row", "'row'", "ShapeDtypeStruct"]),
        ("broken:unknown_axis", ["cache['k']", "no axis 'y'", "it has x"]),
        ("broken:indivisible", ["['k']", "axis 'd' (3) does not divide dimension 0 of 64"]),
        ("broken:specs_of_another_tree", ["in_specs are not a prefix of args", "('q',)", "('k',)"]),
        ("broken:specs_too_long", ["['k']", "3 entries for 2 dimensions"]),
        ("broken:mesh_of_none", ["mesh axis 'd' has size 0"]),
        ("broken:twelve_devices", ["12 devices do not fill hosts of 8", "--topology"]),
        ("broken:no_such_option", ["xla_gpu_no_such_option"]),
        ("broken:crashes", ["SIGABRT", "child.log"]),
        ("broken:exits", ["exit code 3", "child.log"]),
        ("broken:ends_as_llvm_does", ["exit code 1", "LLVM Fatal Error", "Fusion: psum.1"]),
    ],
)
def test_a_workload_that_fails_leaves_goldens_alone(
    workload: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").write_text("as it was")
    before = tree(tmp_path)
    assert main(["dump", workload, "--out", str(tmp_path), "--json"]) == 2
    said = capsys.readouterr()
    (error,) = json.loads(said.out)["errors"]
    assert "Traceback" not in said.err
    for part in expected:
        assert part in error
    assert tree(tmp_path) == before


@pytest.mark.slow
@pytest.mark.usefixtures("in_own_folder")
def test_a_compile_that_hangs_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", "broken:hangs", "--out", str(tmp_path), "--timeout", "8", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "more than 8 s" in error and "--timeout" in error
    assert tree(tmp_path) == {}
    log = Path(error.partition("child's log ")[2].partition(";")[0]).read_text()
    assert "in sleep" in log and "in write_stacks" in log, "where both processes were"
    command = ["dump", "broken:hangs", "--out", str(tmp_path), "--child-memory", "1MB", "--json"]
    assert main(command) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "took more than 0.0 GB" in error and "--child-memory" in error


def test_what_a_stopped_compile_was_doing(tmp_path: Path) -> None:
    """XLA's pass topk-splitter did not end; the message said to allow more time."""
    (tmp_path / "child.log").write_text(
        "I1128 19:06:12.6 1 hlo_pass_pipeline.cc:211]   HLO pass cse\n"
        f"I1128 19:06:12.7 1 {(ended := 'hlo_pass_pipeline.cc:206] HLO pass: cse time: 13 us')}\n"
        "I1128 19:06:12.8 1 hlo_pass_pipeline.cc:211]   HLO pass topk-splitter\n"
    )
    assert last_pass(f"] hlo_pass_pipeline.cc:211]   HLO pass cse\n{ended}\n") == ("cse", False)
    reference = WorkloadReference("topk", "step:topk", None)
    job = Job(reference=reference, target=None, scratch=tmp_path)
    error = str(stopped(job, 11_000_000_000, limit_bytes=10_000_000_000))
    assert "more than 10.0 GB and was stopped in XLA's pass topk-splitter; the process had" in error
    assert "fix: allow more with --child-memory, or change the operations of that pass" in error


@pytest.mark.usefixtures("in_own_folder")
def test_what_a_module_leaves_running_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The compile ended after --timeout, though its result was there."""
    command = ["dump", "keeps_running:workload", "--out", str(tmp_path), "--no-cache", "--json"]
    began = time.monotonic()
    assert main(command) == 0, capsys.readouterr().out
    assert time.monotonic() - began < 120


@pytest.mark.usefixtures("in_own_folder")
def test_one_failure_keeps_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["dump", "broken:does_not_lower", "broken:a_workload", "--out", str(tmp_path), "--json"]
    )
    answer = json.loads(capsys.readouterr().out)
    assert code == 2
    assert [row["workload"] for row in answer["dumps"]] == ["attribute"]
    assert len(answer["errors"]) == 1


@pytest.mark.usefixtures("in_own_folder")
def test_an_unwritable_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "broken:good", "--out", "/proc/nowhere", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "cannot be written" in error and "--out" in error


def test_missing_wheels_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from xlapipe.compile import child_process as compiling
    from xlapipe.compile.doctor import Check

    missing = Check(
        name="libdevice",
        ok=False,
        found="not found",
        expected="the wheel nvidia-nvvm",
        remedy="pip install it",
    )
    monkeypatch.setattr(compiling, "missing_to_compile", lambda platform: (missing,))
    assert main(["dump", "qwen3-step", "--out", str(tmp_path), "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "libdevice" in error and "pip install it" in error


@pytest.mark.parametrize("content", [b"", b"\0\1\2", b"{}", b'{"schema_version": 99}', b"[1]"])
def test_a_damaged_manifest(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    refused(["show", str(tmp_path)], capsys, "manifest.json")
    refused(["check", str(tmp_path)], capsys, "manifest.json")


def test_a_closed_pipe_is_no_error(goldens: Path) -> None:
    program = f"{sys.executable} -m xlapipe.cli targets | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.usefixtures("in_own_folder")
def test_a_failed_compile_is_one_message_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", "broken:does_not_lower", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.count("xlapipe: error: ") == 1
    assert "lowering failed" in said.err
    assert "FAILED" in said.out


def test_a_missing_lock_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--all", "--locked", "--out", str(tmp_path)]) == 0
    assert "No autotune lock for this jaxlib in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tuning", "tune"], "--target attached"),
        (
            ["--tuning", "nowhere.json"],
            "expected auto, none, tune, or a file",
        ),
        (
            ["--tuning", "{golden}", "--target", "b200"],
            "expected target 'b200', found 'h100_sxm'",
        ),
        (
            ["--tuning", "{golden}", "--gemm", "cublas"],
            "expected gemm policy 'cublas', found 'auto'",
        ),
    ],
)
def test_locks_are_refused_before_compiling(
    options: list[str], expected: str, goldens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = goldens / "qwen3-step" / f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}" / "autotune_lock.json"
    refused(["dump", "qwen3-step", *(o.format(golden=lock) for o in options)], capsys, expected)


def test_a_lock_of_another_workload_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = target_named("h200")
    lock = AutotuneLock(
        workload="other",
        gemm_policy="auto",
        target=target.name,
        device=target.description,
        compute_capability=target.compute_capability,
        device_memory_bytes=target.device_memory_bytes,
        versions={"jaxlib": version("jaxlib")},
        target_config=target.config_text,
        results="version: 3",
    )
    path = tmp_path / "lock.json"
    path.write_bytes(lock.to_bytes())
    before = tree(tmp_path)
    arguments = ["dump", "qwen3-step", "--tuning", str(path), "--out", str(tmp_path)]
    refused(arguments, capsys, "expected workload 'qwen3-step', found 'other'")
    assert tree(tmp_path) == before


def test_a_lock_of_another_jaxlib_is_refused(
    goldens: Path, golden_jaxlib: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = goldens / "qwen3-step" / f"h100_sxm-auto-tuned-jax{golden_jaxlib}" / "autotune_lock.json"
    other = tmp_path / "lock.json"
    other.write_text(path.read_text().replace(f'"jaxlib": "{golden_jaxlib}"', '"jaxlib": "0.9"'))
    refused(["dump", "qwen3-step", "--tuning", str(other)], capsys, "found '0.9'")
