"""`xlapipe fit`: compiles of several sizes against the device's memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xlapipe.cli import main
from xlapipe.dumps.dump import open_dump

HERE = Path(__file__).resolve().parent
H200_BYTES = 151_397_597_184


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "xlapipe.cli", "fit", *arguments],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def answer() -> "subprocess.CompletedProcess[str]":
    """A size that fits, one that does not, one that is refused, and one that crashes."""
    return run("sized_step:sized", "--vary", "rows=128,1000000000,3,-1", "--jobs", "2", "--json")


@pytest.fixture(scope="module")
def rows(answer: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer.stdout)["rows"]
    return found


def test_bytes_are_those_of_the_plan(rows: list[dict[str, Any]]) -> None:
    small, large, *_ = rows
    for row, count in ((small, 128), (large, 10**9)):
        assert row["argument_bytes"] == count * 256 * 2
        assert row["output_bytes"] == count * 4
        assert row["total_bytes"] == sum(row[f"{n}_bytes"] for n in ("argument", "output", "temp"))
        assert row["device_memory_bytes"] == H200_BYTES
        assert row["usable_bytes"] == int(H200_BYTES * 0.75)
        assert row["headroom_bytes"] == row["usable_bytes"] - row["total_bytes"]
    assert (small["fits"], large["fits"]) == (True, False)


def test_time_is_told_by_stage(rows: list[dict[str, Any]]) -> None:
    for row in rows[:2]:
        seconds = row["seconds"]
        stages = [seconds[name] for name in ("load", "lower", "compile", "read")]
        assert all(stage > 0 for stage in stages)
        assert sum(stages) == pytest.approx(seconds["all"], abs=0.05)


def test_failures_are_reported_and_the_rest_is_kept(
    answer: "subprocess.CompletedProcess[str]", rows: list[dict[str, Any]]
) -> None:
    assert answer.returncode == 2
    assert [row["fits"] for row in rows] == [True, False, None, None]
    assert "rows=3: expected an even number" in rows[2]["error"]
    assert "SIGABRT" in rows[3]["error"]
    assert answer.stderr.count("xlapipe: error: ") == 2
    assert json.loads(answer.stdout)["largest"] == [
        {"others": {}, "values": {"rows": 128}, "some_failed": True}
    ]


def test_a_kept_dump_is_of_the_plan_that_is_compiled_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without texts and optimised kernels no allocation moves. Nothing fits: exit code 1."""
    monkeypatch.chdir(HERE)
    arguments = ["small_step:small_step", "--memory-fraction", "1e-9", "--json"]
    answers = []
    for more in ([], ["--out", str(tmp_path)]):
        assert main(["fit", *arguments, *more]) == 1
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        answers.append({name: row[name] for name in row if name != "seconds"})
    assert answers[0] == answers[1]
    (manifest,) = tmp_path.glob("small-step/*/manifest.json")
    totals = open_dump(manifest.parent).plan.totals
    assert answers[0]["temp_bytes"] == totals.temp_bytes
    device_bytes = totals.total_allocation_bytes - totals.thread_local_bytes
    assert answers[0]["total_bytes"] == device_bytes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["qwen3-decode", "--vary", "batch:1"], ["--vary 'batch:1'", "batch=1,8,64"]),
        (["qwen3-decode(batch=1)", "--vary", "batch=1"], ["already gives batch=1"]),
        (["qwen3-decod", "--vary", "batch=1"], ["did you mean", "qwen3-decode"]),
        (["qwen3-decode", "--memory-fraction", "1.5"], ["--memory-fraction 1.5", "up to 1"]),
        (["qwen3-decode", "--memory-fraction", "0"], ["--memory-fraction 0", "above 0"]),
        (["qwen3-decode", "--autotune-lock", "lock.json"], ["does not accept --autotune-lock"]),
        (["qwen3-decode", "--topology", "8"], ["topology '8'", "HOSTSxGPUS"]),
        (["qwen3-decode", "--vary", "bath=1,2"], ["no parameter 'bath'", "layers, batch, cache"]),
    ],
)
def test_bad_input_is_one_error(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("xlapipe: error: ") == 1
    assert "Traceback" not in said
    for part in expected:
        assert part in said
