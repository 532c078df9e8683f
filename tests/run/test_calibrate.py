"""`xlapipe device calibrate`: its probes, without a GPU, and the calibration that follows."""

import lzma
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import jax
import pytest

from tests.conftest import ROOT
from tests.gpu.records import (
    RecordAbout,
    RecordedTimes,
    derived_calibration,
    read_record,
    record_with,
)
from xlapipe.devices.targets.device import Device, device_of_target
from xlapipe.plans import Plan
from xlapipe.run.calibration import time_programs as timing
from xlapipe.run.calibration.fit import calibration_of
from xlapipe.run.calibration.probes import probes
from xlapipe.run.calibration.profiles import ProgramProfile, plan_in
from xlapipe.run.calibration.timed_program import TimedProgram
from xlapipe.time.cost import step_cost
from xlapipe.time.cost.schedule import schedule_of, sites_of
from xlapipe.time.predict import predict
from xlapipe.time.predict.calibration import (
    Calibration,
    CalibrationError,
    parse_calibration,
    shipped_calibration,
)
from xlapipe.time.predict.kernel_work import signature
from xlapipe.time.prediction_settings import PredictionSettings

pytestmark = pytest.mark.jax

# Kinds of kernels that a tuner or a library on the device chooses, or that are seldom.
_NOT_WITHOUT_A_DEVICE = {
    *("cublas s8", "cublas f8e4m3fn", "xla.gpu.ext.cub_sort_pairs", "xla.gpu.ext.cub_sort_keys"),
    *("sort s32", "input gather"),
}
# Solvers and Fourier transforms have no probes.
_NO_PROBES = ("all-", "reduce-scatter", "collective-permute", "cusolver_", "cu_lu_", "fft ")
_NO_PROBES += ("__cublas$triangularSolve",)
RECORD = ROOT / "tests/gpu/calibration/h100_sxm-jax0.12.0.1.record.tar.xz"


def test_probes_are_the_same_each_time() -> None:
    first, second = probes(), probes()
    assert 250 <= len(first) <= 270
    assert list(first) == list(second)
    for name, program in first.items():
        assert program.args == second[name].args, name
    # Each family has probes in the first half, which is what there may be time for.
    names = list(first)
    families = {name.partition("/")[0] for name in names}
    assert len(families) == 22
    assert {name.partition("/")[0] for name in names[: len(names) // 2]} == families


def traced(step: int) -> None:
    for name, program in list(probes().items())[::step]:
        if not name.startswith("attention/"):  # it asks for cuDNN's version
            assert jax.tree.leaves(jax.eval_shape(program.fn, *program.structs())), name


def test_some_probes_can_be_traced() -> None:
    traced(12)


@pytest.mark.exhaustive
def test_all_probes_can_be_traced() -> None:
    traced(1)


def compiled(folder: Path, pattern: str) -> dict[str, Plan]:
    """Plans of probes for an H200, compiled in a process of its own."""
    command = [sys.executable, str(ROOT / "tests/run/compile_probes.py"), str(folder), pattern]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert not result.stdout, result.stdout
    paths = sorted({path.parent for path in folder.rglob("*.hlo.pb")})
    return {str(path.relative_to(folder)): plan_in(path) for path in paths}


def known() -> tuple[Device, Calibration]:
    device, shipped = device_of_target("h200"), shipped_calibration("h200")
    assert device is not None
    assert shipped is not None
    return device, shipped


def profile(name: str, plan: Plan) -> ProgramProfile:
    """The profile of a probe that takes what this package's calibration predicts."""
    device, shipped = known()
    cost = step_cost(plan, device)
    assert cost is not None
    prediction = predict(plan, cost, shipped, PredictionSettings(unknown_trips=100))
    kernels = {item.name: (item.launches, item.seconds) for item in prediction.kernels}
    span, call = prediction.span_seconds, prediction.latency_seconds or 0.0
    times = RecordedTimes(span, prediction.kernel_seconds, call, kernels, trips=100)
    return ProgramProfile(name, plan, times)


def calibrated(plans: dict[str, Plan]) -> Calibration:
    device, shipped = known()
    profiles = [profile(name, plan) for name, plan in plans.items()]
    made = calibration_of(profiles, device, shipped.provenance)
    return parse_calibration(made.to_text(), where="made")


@pytest.mark.slow
def test_a_calibration_of_probes_predicts_what_they_took(tmp_path: Path) -> None:
    plans = compiled(tmp_path, "^launches/|^(elements|sums|turned|products|pallas_rows)/00$")
    made = calibrated(plans)
    device, shipped = known()
    assert made.constants.bandwidth == pytest.approx(shipped.constants.bandwidth, rel=0.1)
    for name in ("elements/00", "sums/00", "turned/00", "products/00", "pallas_rows/00"):
        cost = step_cost(plans[name], device)
        assert cost is not None
        before, after = (predict(plans[name], cost, it) for it in (shipped, made))
        assert after.kernel_seconds == pytest.approx(before.kernel_seconds, rel=0.1), name
        assert {kernel.launch.basis for kernel in after.kernels} == {"calibrated"}


def test_without_the_probes_of_constants_there_is_no_calibration() -> None:
    plans = {item.name: item.plan for item in read_record(RECORD, "launches/add_256")[1]}
    with pytest.raises(CalibrationError, match=r"launches/chain_256_no_graph.*; fix: run it on"):
        calibrated(plans)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_probe_compiles_and_every_kind_of_kernel_is_among_them(tmp_path: Path) -> None:
    plans = compiled(tmp_path, "")
    assert plans.keys() == probes().keys()
    missing = known()[1].lines.keys() - calibrated(plans).lines.keys()
    assert {kind for kind in missing if not kind.startswith(_NO_PROBES)} <= _NOT_WITHOUT_A_DEVICE


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


@pytest.mark.slow
def test_a_calibration_is_derived_from_what_was_measured() -> None:
    made = parse_calibration(derived_calibration(RECORD).to_text(), where="made")
    assert sum(len(made.of_kind(kind).at) for kind in made.lines) == 2861
    assert made.device == "NVIDIA H100 80GB HBM3"
    assert made.provenance["versions"]["jaxlib"] == "0.12.0.1"
    shipped = shipped_calibration("h100_sxm")
    assert shipped is not None
    # Kernels of a kind are as far from the formula as those of an earlier jax.
    for kind in ("loop", "copy", "triton row reduction"):
        before, after = (median(calibration.of_kind(kind).ratio) for calibration in (shipped, made))
        assert after == pytest.approx(before, rel=0.25), kind


def test_one_program_of_a_record() -> None:
    about, profiles = read_record(RECORD, "launches/add_256")
    (profile,) = profiles
    assert about.command.startswith("xlapipe calibrate")
    (kernel,) = profile.times.measured
    assert kernel.launches == 1
    assert profile.times.kernel_seconds == kernel.seconds < profile.times.wall_seconds
    assert profile.plan.module is not None
    assert kernel.name in profile.plan.module.entry_computation.by_name


@pytest.mark.slow
def test_a_record_has_each_equal_kernel_once(tmp_path: Path) -> None:
    plans = compiled(tmp_path, "^(chains|norms)/0[0-3]$")
    times = {name: profile(name, plan).times for name, plan in plans.items()}
    about = RecordAbout("NVIDIA H200", "1", "2026-11-28", {"jax": "0"}, "calibrate")
    content = record_with(tmp_path, about, times)
    path = tmp_path / "record.tar.xz"
    path.write_bytes(content)
    unslimmed = b"".join(item.read_bytes() for item in sorted(tmp_path.rglob("*.hlo.pb")))
    assert len(content) < 0.7 * len(lzma.compress(unslimmed, preset=9))
    read, profiles = read_record(path)
    assert asdict(read).items() >= asdict(about).items()
    for item in profiles:
        before, after = (schedule_of(plan.module) for plan in (plans[item.name], item.plan))
        assert item.times == times[item.name]
        assert [signature(site, item.plan.module) for site in sites_of(after)] == [
            signature(site, plans[item.name].module) for site in sites_of(before)
        ]
        assert item.plan.allocations == plans[item.name].allocations
