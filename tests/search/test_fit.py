"""`xlapipe fit`: compiles several sizes and compares each plan with the device's memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump

pytestmark = pytest.mark.jax

H200_MEMORY_BYTES = 151_397_597_184


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "xlapipe.cli", "fit", *arguments],
        cwd=STEPS,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def sweep() -> "subprocess.CompletedProcess[str]":
    """A size that fits, one that does not, one that fails to lower, and one that crashes."""
    return run("sized_step:sized", "--vary", "rows=128,1000000000,3,-1", "--jobs", "2", "--json")


@pytest.fixture(scope="module")
def rows(sweep: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = json.loads(sweep.stdout)["rows"]
    return figures


def test_bytes_are_the_plans_totals(rows: list[dict[str, Any]]) -> None:
    small, large, *_ = rows
    for row, count in ((small, 128), (large, 10**9)):
        assert row["argument_bytes"] == count * 256 * 2
        assert row["output_bytes"] == count * 4
        assert row["total_bytes"] == sum(row[f"{n}_bytes"] for n in ("argument", "output", "temp"))
        assert row["device_memory_bytes"] == H200_MEMORY_BYTES
        assert row["usable_bytes"] == int(row["outside"]["visible_bytes"] * 0.75) == 112_582_410_240
        assert row["outside"]["parts"] == {"context": 585_957_376}
        assert row["outside"]["unmeasured"] == []
        assert row["headroom_bytes"] == row["usable_bytes"] - row["total_bytes"]
    assert (small["fits"], large["fits"]) == (True, False)


def test_time_is_reported_by_stage(rows: list[dict[str, Any]]) -> None:
    for row in rows[:2]:
        seconds = row["seconds"]
        stages = [seconds[name] for name in ("load", "lower", "compile", "read")]
        assert all(stage > 0 for stage in stages)
        assert sum(stages) == pytest.approx(seconds["all"], abs=0.05)


def test_failures_are_reported_and_the_rest_is_kept(
    sweep: "subprocess.CompletedProcess[str]", rows: list[dict[str, Any]]
) -> None:
    assert sweep.returncode == 2
    assert [row["fits"] for row in rows] == [True, False, None, None]
    assert "rows=3: expected an even number" in rows[2]["error"]
    assert "SIGABRT" in rows[3]["error"]
    assert sweep.stderr.count("xlapipe: error: ") == 2
    assert json.loads(sweep.stdout)["largest"] == [
        {"others": {}, "values": {"rows": 128}, "some_failed": True}
    ]


def test_a_compile_with_a_whole_dump_has_the_same_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts and kernel optimisation change no allocation. Nothing fits, so the exit code is 1."""
    monkeypatch.chdir(STEPS)
    arguments = ["small_step:small_step", "--memory", "0.000000001", "--json"]
    assert main(["fit", *arguments]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert main(["dump", "small_step:small_step", "--out", str(tmp_path)]) == 0
    (manifest,) = tmp_path.glob("small-step/*/manifest.json")
    totals = open_dump(manifest.parent).plan.totals
    assert row["temp_bytes"] == totals.temp_bytes
    device_bytes = totals.total_allocation_bytes - totals.thread_local_bytes
    assert row["total_bytes"] == device_bytes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["qwen3-decode", "--vary", "batch:1"], ["--vary 'batch:1'", "batch=1,8,64"]),
        (["qwen3-decode(batch=1)", "--vary", "batch=1"], ["already gives batch=1"]),
        (["qwen3-decod", "--vary", "batch=1"], ["did you mean", "qwen3-decode"]),
        (["qwen3-decode", "--memory", "1.5"], ["--memory 1.5", "up to 1"]),
        (["qwen3-decode", "--memory", "0"], ["--memory 0", "above 0"]),
        (
            ["qwen3-decode", "--memory", "usable-4G"],
            ["--memory usable-4G: expected a share", "less what must stay free"],
        ),
        (["qwen3-decode", "--tuning", __file__], ["a lock is valid for one size and form"]),
        (["qwen3-decode", "--topology", "8"], ["topology '8'", "HOSTSxGPUS"]),
        (["qwen3-decode", "--vary", "bath=1,2"], ["no parameter 'bath'", "layers, batch, cache"]),
    ],
)
def test_invalid_input_is_one_error(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("xlapipe: error: ") == 1
    assert "Traceback" not in message
    for part in expected:
        assert part in message
