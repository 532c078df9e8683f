"""Numbers of files are checked when they are read: one error with field and expectation."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.dump.fuzz_readers import renew_digests
from tests.shared.dumps import ROOT
from xlapipe.cli import main

DUMP = ROOT / f"hlo_dumps/spectral-diffusion/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda record: record.update(span_seconds=-1.0), "span_seconds: expected a number >= 0.0"),
        (
            lambda record: record.update(wall_seconds="1"),
            "wall_seconds: expected a number, found '1'",
        ),
        (
            lambda record: record.update(wall_seconds=1e30),
            "wall_seconds: expected a number <= 86400",
        ),
        (
            lambda record: record.update(busy_seconds=True),
            "busy_seconds: expected a number, found True",
        ),
        (lambda record: record.update(steps=0), "steps: expected an integer >= 1, found 0"),
        (lambda record: record.update(steps=2.0), "steps: expected an integer, found 2.0"),
        (lambda record: record["kernels"].append(record["kernels"][0]), "is listed twice"),
        (lambda record: record["kernels"][0].update(seconds=1.0), "more than the"),
        (
            lambda record: record["kernels"][0].update(launches=-3),
            "launches: expected an integer >= 1, found -3",
        ),
        (
            lambda record: record["kernels"][0].pop("seconds"),
            "kernels[0].seconds: expected a value, found none",
        ),
        (lambda record: record.update(kernels=5), "kernels: expected a list, found 5"),
    ],
)
def test_a_time_record(
    change: Change, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = Path(shutil.copytree(DUMP, tmp_path / "dump"))
    record = json.loads((dump / "time_record.json").read_text())
    change(record)
    (dump / "time_record.json").write_text(json.dumps(record))
    assert main(["show", "--time", str(dump)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert str(dump / "time_record.json") in error
    assert "fix: " in error


@pytest.mark.parametrize("size", ["2", 1.0, 0, -1, True, None, [2]])
def test_a_mesh(size: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = Path(shutil.copytree(DUMP, tmp_path / "dump"))
    manifest = json.loads((dump / "manifest.json").read_text())
    manifest["mesh"] = {"data": size}
    (dump / "manifest.json").write_text(json.dumps(manifest))
    assert main(["show", str(dump)]) == 2
    error = capsys.readouterr().err
    assert "fix: " in error
    expected = "an integer >= 1" if type(size) is int else "an integer"
    assert f"mesh: expected {expected}, found {{'data': {size!r}}}" in error


TEXTS = Path(__file__).with_name("texts")
CYCLE = (TEXTS / "cycle_hlo.txt").read_text(encoding="utf-8")
ASSIGNMENT = """BufferAssignment:
allocation 0: size 32, parameter 0, shape |f32[8]| at ShapeIndex {}:
 value: <0 x @0> (size=32,offset=0): f32[8]{0}
allocation 1: size 32, maybe-live-out:
 value: <1 a @0> (size=32,offset=0): f32[8]{0}

Total bytes used: 64 (64B)
"""


@pytest.mark.parametrize(
    "command",
    [("show",), ("show", "--time"), ("check",), ("show", "--all")],
)
def test_cyclic_operands(command: tuple[str, ...], tmp_path: Path) -> None:
    """Only a damaged module has them; they used to be a traceback."""
    (tmp_path / "m_after_optimizations.txt").write_text(CYCLE)
    (tmp_path / "m_after_optimizations-buffer-assignment.txt").write_text(ASSIGNMENT)
    assert main([*command, str(tmp_path)]) in (0, 2)


def test_a_launch_of_more_threads_than_a_float_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = Path(shutil.copytree(DUMP, tmp_path / "dump"))
    thunks = dump / "thunk_sequence.txt"
    thunks.write_text(re.sub(r"grid: \[\d+", f"grid: [{'9' * 400}", thunks.read_text()))
    renew_digests(dump)
    assert main(["show", str(dump), "--time"]) == 0
    assert "predicted" in capsys.readouterr().out
