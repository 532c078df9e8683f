"""`xlapipe.fit` and `xlapipe.largest` from Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import xlapipe
from xlapipe import XlapipeError
from xlapipe.search.sizing import sizes
from xlapipe.search.sizing.fit import Row
from xlapipe.search.sizing.planned_memory import PlannedMemory

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "largest_batch"
FOLDER = Path(__file__).parent


def memory(size: int) -> PlannedMemory:
    return PlannedMemory(
        workload="w",
        topology=None,
        argument_bytes=1000,
        output_bytes=0,
        temp_bytes=10 * size,
        device_memory_bytes=20_000,
        usable_bytes=15_000,
        rematerialised=0,
        seconds={},
    )


def test_the_largest_size_and_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(points: list[object], jobs: list[object], **_: object) -> tuple[Row, ...]:
        return tuple(Row(point, memory(point.values["rows"])) for point in points)  # type: ignore

    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sizes, "fit_rows", planned)
    found = xlapipe.largest("sized_step:sized", "rows", multiple_of=8)
    assert (found.value, found.too_large) == (1400, 1408)
    assert found.memory == memory(1400)
    assert len(found.compiled) <= 8
    reserved = xlapipe.largest("sized_step:sized", "rows", multiple_of=8, reserve_bytes=4000)
    assert reserved.value == 1000


def test_invalid_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(XlapipeError, match="already gives rows=2"):
        xlapipe.fit("sized_step:sized(rows=2)", {"rows": [2, 4]})
    with pytest.raises(XlapipeError, match="no positive multiple"):
        xlapipe.largest("sized_step:sized", "rows", lower=3, upper=7, multiple_of=8)


@pytest.mark.slow
def test_a_training_script_chooses_its_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import train; print('batch', train.choose_batch(upper=2048))"],
        cwd=EXAMPLE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("batch 1024: ")
    assert lines[-1] == "batch 2048"
