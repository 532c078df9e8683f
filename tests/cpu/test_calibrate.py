"""`xlapipe calibrate`: what it refuses, and how kernels are added to a calibration."""

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.gpu.time_zoo.time_zoo import programs_of
from xlapipe.cli import main
from xlapipe.predict.calibration import CalibrationError, parse_calibration, shipped_calibration
from xlapipe.profiles.measured import Measured, MeasuredKernel
from xlapipe.readers import read_path
from xlapipe.running.calibration import time_programs as timing
from xlapipe.running.calibration.calibrate import base_for_attached, chosen_programs
from xlapipe.running.calibration.fit import ProgramProfile, extended
from xlapipe.running.calibration.timed_program import TimedProgram
from xlapipe.targets.device import device_of_target

RECORDS = Path(__file__).resolve().parents[1] / "gpu/time_zoo/records"


def test_the_example_of_a_zoo_has_30_programs_that_can_be_traced() -> None:
    zoo = programs_of(RECORDS.parent / "programs.py")
    assert len(zoo) == 29  # and one for several GPUs
    for name, program in zoo.items():
        if name != "transformers/cudnn_attention":  # it asks for cuDNN's version
            assert jax.tree.leaves(jax.eval_shape(program.fn, *program.structs())), name


def profile(name: str, program: str, folder: Path) -> ProgramProfile:
    """What a program of the second zoo took, under another name."""
    with tarfile.open(RECORDS / "unseen.plans.tar.xz") as archive:
        members = [item for item in archive if item.name.startswith(f"{program}/")]
        archive.extractall(folder, members, filter="data")
    programs = json.loads((RECORDS / "unseen.json").read_text(encoding="utf-8"))["programs"]
    record = programs[program]
    kernels = tuple(MeasuredKernel(key, *row) for key, row in record["kernels"].items())
    seconds = record["kernel_seconds"]
    measured = Measured(kernels, (), seconds, 0.0, record["span_seconds"], seconds, 5)
    return ProgramProfile(name, read_path(folder / program), measured, [record["wall_seconds"]])


def test_further_kernels_replace_those_of_the_same_program(tmp_path: Path) -> None:
    base, speeds = shipped_calibration("h200"), device_of_target("h200")
    assert base is not None
    assert speeds is not None
    timed = profile("top_8_4096x4096", "decoding/beams", tmp_path)
    given = {"date": "2026-11-23", "command": "xlapipe calibrate --only top_8_4096x4096"}
    both = extended(base, [timed], speeds, given)

    others = [kernel for kernel in base.kernels if kernel.program != timed.name]
    assert len(others) < len(base.kernels)
    assert list(both.kernels[: len(others)]) == others
    added = both.kernels[len(others) :]
    assert {kernel.program for kernel in added} == {timed.name}
    assert not any(kernel.device for kernel in added)
    (selection,) = (kernel for kernel in added if kernel.kind == "__gpu$TopK f32")
    (measured,) = (row for row in timed.measured.kernels if row.name == "custom-call.1")
    assert selection.microseconds == round(measured.seconds * 1e6, 2)
    assert both.constants == base.constants
    earlier = base.provenance["extended"]
    assert both.provenance == {**base.provenance, "extended": [*earlier, given]}
    again = extended(both, [timed], speeds, given)
    assert again.kernels == both.kernels
    assert again.provenance["extended"] == [*earlier, given, given]
    read = parse_calibration(both.to_text(), where="written")
    assert read.provenance == both.provenance
    assert len(read.kernels) == len(both.kernels)


def test_programs_are_chosen_by_name() -> None:
    assert list(chosen_programs("^chain_1(6)?$")) == ["chain_1", "chain_16"]
    with pytest.raises(CalibrationError, match=r"none of the .* programs has such a name"):
        chosen_programs("^no such program$")
    with pytest.raises(CalibrationError, match="not a regular expression"):
        chosen_programs("(")


def test_a_calibration_of_another_device_is_not_extended(tmp_path: Path) -> None:
    base = shipped_calibration("h200")
    assert base is not None
    (tmp_path / "h200.jsonl").write_text(base.to_text(), encoding="utf-8")
    with pytest.raises(CalibrationError, match="is cpu, and the calibration is of NVIDIA H200"):
        base_for_attached(tmp_path / "h200.jsonl")
    with pytest.raises(CalibrationError, match=r"is cpu, and none is in this package; fix: "):
        base_for_attached(None)


def test_a_calibration_is_given_with_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    arguments = ["calibrate", "--target", "attached", "--out", str(out), "--calibration", "x"]
    assert main(arguments) == 2
    assert "fix: add --only" in capsys.readouterr().err
    assert not out.exists()


def test_what_is_compiled_is_timed_although_another_compile_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(program: TimedProgram, folder: Path) -> str:
        time.sleep(1.5 if folder.name == "late" else 0)
        return folder.name

    def profiled(
        batch: dict[str, tuple[TimedProgram, str]], calls: int, report: Any
    ) -> Iterator[tuple[str, str]]:
        yield from ((name, executable) for name, (_, executable) in batch.items())

    monkeypatch.setattr(timing, "_compiled", compiled)
    monkeypatch.setattr(timing, "_profiled", profiled)
    programs = {name: TimedProgram(abs, ()) for name in ("late", "early")}
    reports: list[str] = []
    timed = timing.time_programs(
        programs, tmp_path, compile_seconds=0.5, total_seconds=1.0, report=reports.append
    )
    assert [name for name, _ in timed] == ["early"]
    assert reports == ["not compiled in time: late"]
