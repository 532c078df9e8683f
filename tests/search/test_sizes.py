"""`xlapipe.fit` and `xlapipe.largest` from Python."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import xlapipe
from tests.folders import STEPS
from tests.shared.sample_records import planned
from xlapipe import XlapipeError
from xlapipe.search.candidate import Candidate
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.rows import Row, SearchSettings
from xlapipe.search.sizing import sizes

pytestmark = pytest.mark.jax

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "largest_batch"


def memory(size: int) -> PlannedMemory:
    return planned(10 * size, argument_bytes=1000, output_bytes=0, usable_bytes=15_000)


def test_the_largest_size_and_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(
        candidates: Sequence[Candidate], search: SearchSettings, *_: object
    ) -> tuple[Row, ...]:
        usable = 15_000 - search.memory.reserved_bytes
        return tuple(
            Row(candidate, replace(memory(candidate.values["rows"]), usable_bytes=usable))
            for candidate in candidates
        )

    monkeypatch.chdir(STEPS)
    monkeypatch.setattr(sizes, "compile_rows", compiled)
    found = xlapipe.largest("sized_step:sized", "rows", multiple_of=8)
    assert (found.value, found.too_large) == (1400, 1408)
    assert found.memory == memory(1400)
    assert len(found.compiled) <= 8
    reserved = xlapipe.largest("sized_step:sized", "rows", multiple_of=8, memory="usable-4000")
    assert reserved.value == 1000


def test_invalid_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STEPS)
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
