"""Locks that users add, the results that are known, and which compiles they are used for."""

import json
import os
import re
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from xlapipe.cli import main
from xlapipe.compile.known_locks import _known_results, added_locks, known_results
from xlapipe.compile.make_jobs import CompileSettings, jobs_of, jobs_to_compare
from xlapipe.compile.tuning import Tuned
from xlapipe.dump.autotune_lock import read_lock
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import WorkloadReference
from xlapipe.time.predicted_locks.known_results import TRITON_COMMITS, results_of_lock

REFERENCE = WorkloadReference("step", "step:workload")
LOCK = ROOT / "tests/gpu/zoo_locks/scan_gradient.json"
ENTRY = re.compile(r"^entries \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "xlapipe/locks"


def test_a_lock_of_another_jaxlib_is_used_where_its_triton_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def jaxlib(found: str) -> None:
        monkeypatch.setattr("xlapipe.compile.known_locks.version", lambda name: found)
        _known_results.cache_clear()

    jaxlib("0.12.0.1")
    (results, device) = known_results("h200", "auto") or pytest.fail("nothing is known")
    own = {row.other_jaxlib for row in results.results if not row.other_device}
    assert own == {False, True}  # those of the installed jaxlib, and of an earlier one
    # The H100's table of 0.12.0.1 is of the same jaxlib.
    assert {row.other_jaxlib for row in results.results if row.other_device} == {True, False}
    assert device.name == "h200"
    jaxlib("0.13.0")
    assert known_results("h200", "auto") is None
    _known_results.cache_clear()


@pytest.mark.parametrize("name", ["/etc/evil", "../../evil", "a/b", "n" * 300])
@pytest.mark.parametrize("field", ["workload", "target"])
def test_a_lock_names_no_path(users_folder: Path, tmp_path: Path, field: str, name: str) -> None:
    """Names in a lock were part of the path of its copy."""
    lock = tmp_path / "given.json"
    lock.write_bytes(replace(read_lock(LOCK), **{field: name}).to_bytes())
    before = set(tmp_path.rglob("*"))
    assert main(["device", "locks", str(lock)]) == 0
    (copy,) = users_folder.iterdir()
    assert set(tmp_path.rglob("*")) - before - {copy} == {tmp_path / "xlapipe", users_folder}


@pytest.mark.parametrize("field", ["workload", "gemm_policy", "target", "device", "results"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_lock_with_text_that_no_file_holds(
    users_folder: Path, tmp_path: Path, field: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "given.json"
    lock.write_text(json.dumps({**json.loads(LOCK.read_text()), field: text}, indent=1))
    assert main(["device", "locks", str(lock)]) == 2
    error = capsys.readouterr().err
    assert f"{lock}: {field}: expected text without control characters, found " in error
    assert "fix: " in error
    assert not users_folder.exists()


def test_results_of_a_lock_are_read_in_linear_time() -> None:
    """Three lazy patterns over all lines took minutes for 100 KB."""
    (entry,) = ENTRY.findall(read_lock(LOCK).results)[:1]
    device = 'device: "a" hlo_fingerprint: "b" codegen_version: "c" optimal_config { '
    for text in (device * 20_000, "optimal_backend_version " * 50_000, "entries {\n" * 50_000):
        start = time.process_time()
        _, results = results_of_lock(f"{entry}entries {{\n{text}\n}}\n", program="p")
        assert len(results) == 1
        assert time.process_time() - start < 5


@pytest.mark.parametrize("kind", ["dangling", "folder", "loop", "pipe", "damaged", "no results"])
def test_a_file_that_is_no_lock_is_named(
    users_folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    users_folder.mkdir(parents=True)
    bad = users_folder / "0bad.json"
    if kind == "folder":
        bad.mkdir()
    elif kind == "pipe":
        os.mkfifo(bad)
    elif kind in ("dangling", "loop"):
        bad.symlink_to(bad if kind == "loop" else users_folder / "nothing")
    else:
        lock = replace(read_lock(LOCK), results="")
        bad.write_bytes(lock.to_bytes() if kind == "no results" else b"{")
    assert main(["device", "locks"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(bad) in line and line.endswith("fix: remove it from this folder")
    with pytest.raises(XlapipeError, match="0bad"):
        known_results("h200", "auto")


def test_a_users_lock_is_used_for_its_device(
    users_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _ = known_results("h200", "auto")
    assert main(["device", "locks", str(LOCK), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["known"]
    (added,) = (row["from"] for row in known if row["from"] != "package")
    assert Path(added).parent == users_folder
    assert [lock for _, lock in added_locks()] == [read_lock(LOCK)]
    after, device = known_results("h200", "auto")
    _, results = results_of_lock(read_lock(LOCK).results, program="scan_gradient")
    keys = {row.fingerprint for row in results}
    assert keys <= set(after.by_fingerprint())
    added = {row.fingerprint for row in after.results if "scan_gradient" in row.programs}
    assert keys == added
    assert not any("scan_gradient" in row.programs for row in before.results)
    assert device.config_text == read_lock(LOCK).target_config
    assert main(["device", "locks"]) == 0
    assert "of scan_gradient" in capsys.readouterr().out


def test_a_file_that_is_not_a_lock_is_not_added(
    users_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock.json"
    path.write_text("{}")
    assert main(["device", "locks", str(path)]) == 2
    assert "expected schema_version" in capsys.readouterr().err
    assert not users_folder.exists()


@pytest.mark.parametrize(("target", "policy"), [("a100_sxm_80", "auto"), ("h200", "cublas")])
def test_without_any_known_result_no_lock_is_predicted(target: str, policy: str) -> None:
    assert known_results(target, policy) is None
    (job,) = jobs_of([REFERENCE], CompileSettings(target=target, policies=(policy,)))
    assert job.known_results is None


def test_a_lock_is_predicted_where_results_are_known_unless_the_project_is_untuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(**options: Any) -> list[bool]:
        jobs = jobs_of([REFERENCE], CompileSettings(**options))
        return [job.known_results is not None for job in jobs]

    monkeypatch.chdir(tmp_path)
    is_known = version("jaxlib") in TRITON_COMMITS
    assert known() == [is_known]
    assert known(policies=("auto", "cublas")) == [is_known, False]
    assert known(target="b200") == known(target="v6e") == known(tuning=Tuned.NONE) == [False]
    assert known(options={"xla_gpu_autotune_level": 0}) == [False]
    (tmp_path / "pyproject.toml").write_text("[tool.xlapipe]\nuntuned = true\n")
    assert known() == [False]
    assert known(tuning=Tuned.AUTO) == [is_known]
    (folder := tmp_path / "steps").mkdir()
    monkeypatch.chdir(folder)
    assert known() == [False]
    (tmp_path / "pyproject.toml").write_text("[tool.xlapipe]\nuntuned = 'yes'\n")
    with pytest.raises(WorkloadError, match=r"tool.xlapipe.untuned: expected true or false, found"):
        known()
    assert known(project=Path("/")) == [is_known]


def test_two_compiles_that_are_compared_rest_on_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reference, common = "step:workload", CompileSettings()

    def known(*options: CompileSettings) -> list[bool]:
        jobs = jobs_to_compare(reference, options)
        assert len({job.target for job in jobs}) == 1
        return [job.known_results is not None for job in jobs]

    is_known = version("jaxlib") in TRITON_COMMITS
    other = replace(common, options={"xla_gpu_enable_latency_hiding_scheduler": True})
    assert known(common, other) == [is_known, is_known]
    assert known(common, replace(common, policies=("triton",))) == [False, False]
    assert known(common, replace(common, options={"xla_gpu_autotune_level": 0})) == [False, False]


def test_a_folder_of_locks_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "xlapipe").mkdir()
    assert list(added_locks()) == []
    (tmp_path / "xlapipe/locks").touch()
    with pytest.raises(XlapipeError, match="locks: Not a directory; fix: let this user read it"):
        list(added_locks())
