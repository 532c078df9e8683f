"""Predicted times against the records of the zoo, floors and basis; damaged calibrations."""

import dataclasses
import importlib.util
import json
import math
import shutil
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main
from xlapipe.devices.targets.device import device_of_target
from xlapipe.differences.compare import compare_opened
from xlapipe.dump.readers import read_path
from xlapipe.report.subjects import open_subject
from xlapipe.report.time_lines import why_lines
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import kernel_work, predict
from xlapipe.time.predict.calibration import (
    Calibration,
    CalibrationError,
    TimedKind,
    parse_calibration,
    read_calibration,
    shipped_calibration,
)
from xlapipe.time.predict.interpolation import interpolated
from xlapipe.time.predict.scaled_calibration import calibration_for
from xlapipe.time.predict.sustained import sustained_factor
from xlapipe.time.predict.work import KernelWork
from xlapipe.time.prediction_settings import PredictionSettings

ROOT = Path(__file__).resolve().parents[2]
DUMPS = ROOT / "hlo_dumps"


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    path = ROOT / "tests/gpu/time_zoo/compare.py"
    spec = importlib.util.spec_from_file_location("time_zoo_compare", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def calibration() -> Calibration:
    shipped = shipped_calibration("h200")
    assert shipped is not None
    return shipped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zoo", "family", "mean", "median", "call"),
    [
        ("blind", "machine_learning", 0.096, 0.08, 0.135),
        ("blind", "numerics", 0.13, 0.12, 0.18),
        ("blind2", "learning", 0.089, 0.041, 0.102),
        ("blind2", "numerics", 0.335, 0.21, 0.315),
    ],
)
def test_a_blind_zoo(
    compare: ModuleType, zoo: str, family: str, mean: float, median: float, call: float
) -> None:
    """Programs of somebody who had not seen the predictor; the first one's host is slow."""
    own = [item for item in compare.compared(zoo) if item.name.startswith(family)]
    row = compare.summary(own)
    assert row["mean"] <= mean
    assert row["median"] <= median
    assert row["call_mean"] <= call
    assert row["interval"] >= 0.8


@pytest.mark.parametrize(("records", "call"), [("two", 0.05), ("two_h100", 0.16)])
def test_calls_on_two_gpus(compare: ModuleType, records: str, call: float) -> None:
    """Each GPU is dispatched to: without that, calls are 13 and 20 % off."""
    row = compare.summary(compare.compared(records))
    assert row["call_mean"] <= call
    assert row["span_mean"] <= 0.04


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_kernels_of_all_zoos_are_predicted(compare: ModuleType) -> None:
    """`python -m tests.figures --time` writes their errors into the documentation."""
    zoos = [compare.compared(name) for name in compare.ZOOS]
    row = compare.summary([item for zoo in zoos for item in zoo])
    assert (row["programs"], row["interval"] >= 0.9) == (881, True)
    assert row["mean"] <= 0.091
    assert all(compare.summary(zoo)["interval"] >= 0.6 for zoo in zoos)


@pytest.mark.parametrize("records", ["unseen", "two"])
def test_every_kernel_of_a_zoo_has_a_basis_and_at_least_its_floor(
    compare: ModuleType, records: str
) -> None:
    for item in compare.compared(records):
        floors = {kernel.name: kernel.floor_seconds for kernel in item.cost.kernels}
        prediction = item.prediction
        assert item.counted_seconds >= item.cost.floor_seconds
        assert prediction.low_seconds <= prediction.step_seconds <= prediction.high_seconds
        assert {kernel.name for kernel in prediction.kernels} <= floors.keys()
        for kernel in prediction.kernels:
            assert kernel.seconds >= floors[kernel.name] * (1 - 1e-9), (item.name, kernel.name)
            assert kernel.launch.basis in ("calibrated", "scaled", "assumed")
        if any(kernel.launch.basis == "assumed" for kernel in prediction.kernels):
            assert any("was not timed" in text for text in prediction.assumptions)


def test_scatters_whose_rows_may_meet_are_stated(compare: ModuleType) -> None:
    # Many updates of few places in one, and of an embedding with few updates in the other.
    for zoo, name in (("seventeenth", "recommending/hstu"), ("fourth", "language/gpt")):
        (item,) = compare.compared(zoo, name)
        (text,) = (text for text in item.prediction.assumptions if "spread evenly" in text)
        assert "fix: add them in float32" in text


def test_a_calibration_changes_no_file_of_a_dump(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(DUMPS / f"qwen3-decode/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    plan = open_subject(folder).plan
    lines = calibration().to_text().splitlines()
    header = {**json.loads(lines[0]), "device": "NVIDIA H200"}
    given = parse_calibration("\n".join([json.dumps(header), *lines[1:]]), where="given")
    opened = replace(open_subject(folder), settings=PredictionSettings(calibration=given))
    assert opened.prediction is not None
    assert opened.prediction.scaled_from == "NVIDIA H200"
    assert opened.plan == plan
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["time_record.json", "plan.txt", "autotune_lock.json"])
def test_a_file_that_is_no_calibration_is_refused_by_its_first_line(name: str) -> None:
    path = DUMPS / f"qwen3-decode/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}" / name
    with pytest.raises(CalibrationError, match=rf"{name}, line 1: .*fix:"):
        read_calibration(path)


def test_caches_and_threads_go_by_clocks_and_operations_by_lanes() -> None:
    """An A100: 108 multiprocessors of 64 lanes at 1.41 GHz; an H200: 132 of 128 at 1.98."""
    device, own = device_of_target("a100_sxm_80"), shipped_calibration("h200")
    assert device is not None and own is not None
    other = calibration_for(device)
    assert other is not None
    clocks = 108 * 1.41 / (132 * 1.98)
    for name, share in (("l2_bandwidth", 1), ("thread_rate", 1), ("operation_rate", 0.5)):
        ratio = getattr(other.constants, name) / getattr(own.constants, name)
        assert ratio == pytest.approx(share * clocks, rel=1e-3), name


def test_another_gpu_is_scaled_and_says_so() -> None:
    opened = open_subject(DUMPS / f"qwen3-decode/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}")
    other = dataclasses.replace(opened, settings=PredictionSettings(target="a100_sxm_80"))
    assert other.prediction.scaled_from == "NVIDIA H200"
    assert {kernel.launch.basis for kernel in other.prediction.kernels} == {"scaled"}
    assert other.prediction.step_seconds > opened.prediction.step_seconds


def test_a_difference_states_both_predictions() -> None:
    a, b = (
        open_subject(DUMPS / "qwen3-decode" / f"{name}-jax{GOLDEN_JAXLIB}")
        for name in ("h100_sxm-auto-tuned", "h200-cublas")
    )
    assert a.prediction is not None
    assert b.prediction is not None
    before, after = a.prediction.step_seconds, b.prediction.step_seconds
    step, *lines = compare_opened(a.program, b.program).time
    text = f"; predicted {before * 1e6:,.1f} -> {after * 1e6:,.1f} µs ({after / before - 1:+.1%})"
    assert step.text.endswith(text)
    assert step.predicted_delta_seconds == pytest.approx(after - before)
    kernels = b.prediction.kernel_seconds - a.prediction.kernel_seconds
    assert sum(line.predicted_delta_seconds or 0.0 for line in lines) == pytest.approx(
        kernels, rel=0.1
    )
    (line,) = [line for line in lines if "embedding.py:24" in line.text]
    assert f"predicted {(line.predicted_delta_seconds or 0) * 1e6:+,.1f} µs" in line.text


def test_why_lists_parts_that_add_up() -> None:
    prediction = open_subject(
        DUMPS / f"qwen3-decode/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
    ).prediction
    kernel = max(prediction.kernels, key=lambda item: item.seconds)
    factors = set()
    for item in prediction.kernels:
        launch, lines = item.launch, list(why_lines(prediction, item.name))
        parts = sum(part.seconds for part in launch.parts)
        assert parts * launch.ratio * launch.in_a_step == pytest.approx(launch.seconds)
        assert any("longer in a step" in line for line in lines) == (launch.in_a_step != 1)
        factors.add(launch.in_a_step)
    assert max(factors) > 1
    lines = list(why_lines(prediction, kernel.name))
    assert "launch" in lines[2]
    assert any("TB/s" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "text", "problem"),
    [
        (1, "{}", "xlapipe_calibration"),
        (1, "[]", "expected an object, found"),
        (2, '{"constants": {}}', "constants.launch_seconds: expected a value, found none"),
        (2, '{"constants": []}', "constants: expected an object, found"),
        (3, "not JSON", "a JSON object"),
        (4, '{"kind": "copy", "at": [[1]], "ratio": [-1]}', "expected a number > 0"),
        (4, '{"kind": "copy", "at": [[1]], "graph": [0]}', "expected true or false, found 0"),
        (4, '{"kind": "copy", "at": [], "at": [1]}', "the key 'at' is given twice"),
        (5, '{"kind": "copy", "at": [["x"]]}', "expected a number, found 'x'"),
        (5, '{"kind": "copy", "at": [[1e200]]}', "a number <= 1000000"),
        (5, '{"kind": "copy", "at": [[1], [1, 2]]}', "at: expected equally many numbers"),
        (5, '{"kind": "copy", "at": [[1]], "graph": [true]}', "us: expected 1 values as of at"),
    ],
)
def test_damaged_calibrations_are_refused_by_line(line: int, text: str, problem: str) -> None:
    lines = calibration().to_text().splitlines()[:10]
    lines[line - 1] = text
    with pytest.raises(CalibrationError, match=rf"some\.jsonl, line {line}: .*{problem}.*fix:"):
        parse_calibration("\n".join(lines), where="some.jsonl")


def constant(name: str, value: object) -> str:
    """The lines of a calibration with another value of a constant."""
    lines = calibration().to_text().splitlines()
    constants = json.loads(lines[1])["constants"]
    lines[1] = json.dumps({"constants": {**constants, name: value}})
    return "\n".join(lines)


@pytest.mark.parametrize("value", [True, "1", None, [], 0, -1.0, 1e-300, 1e300])
@pytest.mark.parametrize("name", ["launch_seconds", "bandwidth", "l2_bytes", "leaf_seconds"])
def test_a_constant_that_no_gpu_has(name: str, value: object) -> None:
    if (name, value) in (("launch_seconds", 1e-300), ("leaf_seconds", 1e-300)):
        return  # shorter than any, which changes no figure
    with pytest.raises(CalibrationError, match=rf"line 2: constants\.{name}: expected a number"):
        parse_calibration(constant(name, value), where="some.jsonl")


@pytest.mark.parametrize("name", ["bf16", "tf32", "s8"])
def test_a_peak_that_is_missing(name: str) -> None:
    """Products of that type were predicted by the rate of other operations, six times as long."""
    peaks = {key: rate for key, rate in calibration().constants.peak_flops.items() if key != name}
    with pytest.raises(CalibrationError, match=rf"peak_flops: .*H200, found none of {name}; fix"):
        parse_calibration(constant("peak_flops", peaks), where="some.jsonl")


def test_calibration_survives_writing_and_reading() -> None:
    text = calibration().to_text()
    assert parse_calibration(text, where="text").to_text() == text
    assert json.loads(text.splitlines()[0])["device"] == "NVIDIA H200"


def test_a_timed_kernel_is_the_nearest_to_itself_and_equally_distant_ones_stay_in_order() -> None:
    at = [*(100.0 + number for number in range(30)), 2.0, 1.0, 0.0]
    timed = TimedKind("kind", [(x, 0.0) for x in at], [False] * len(at), ratio=[1.5] * len(at))
    fitted = calibration().constants.fitted
    logarithm, spread, nearest = interpolated((1.0, 0.0), False, timed, fitted)
    assert nearest == (31, 30, 32, *range(21))
    assert math.exp(logarithm) == pytest.approx(1.5)  # that of all of them
    assert spread == pytest.approx(0.05)


@pytest.mark.parametrize("target", ["h200", "h100_sxm"])
def test_every_line_of_a_calibration_is_valid(target: str) -> None:
    file = resources.files("xlapipe.time.predict").joinpath(f"calibrations/{target}.jsonl.gz")
    shipped = shipped_calibration(target)
    assert shipped is not None
    assert read_calibration(Path(str(file))) == shipped


def test_slices_of_arrays_in_host_memory_take_as_long_as_copies_to_the_host() -> None:
    plan = read_path(ROOT / "tests/data/host_slices")
    prediction = predict(plan, step_cost(plan, device_of_target("h200")), calibration())
    moved = {k.name: k for k in prediction.kernels if k.work.kind == "host copy"}
    assert set(moved) == {"dynamic-update-slice-start.1", "dynamic-slice-start.1"}
    for kernel in moved.values():
        # 16 MiB; a copy of that size to the host took 0.3 ms.
        assert kernel.launches == 4 and 2e-4 < kernel.seconds / kernel.launches < 4e-4
    # Each iteration waits for its copy, beside which products run.
    copied = sum(kernel.seconds for kernel in moved.values())
    assert copied < prediction.step_seconds < sum(kernel.seconds for kernel in prediction.kernels)


def test_the_clocks_run_once_over_a_loop_in_a_loop() -> None:
    """28 layers, and chunks of 32 in each, on a GPU that always has work."""
    prediction = open_subject(
        DUMPS / f"qwen3-train/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}"
    ).prediction
    assert prediction is not None
    assert max(kernel.launches for kernel in prediction.kernels) == 28 * 32
    assert prediction.step_seconds < 1.5 * prediction.kernel_seconds


def test_slices_for_which_xla_emits_no_kernel_take_as_long_as_copies() -> None:
    opened = open_subject(DUMPS / f"qwen3-step/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}")
    assert opened.prediction is not None
    assert opened.time_record is not None
    kernels = {kernel.name: kernel for kernel in opened.prediction.kernels}
    for name in ("wrapped_slice", "wrapped_slice.1"):
        assert kernels[name].work.kind == "copy"
        measured = opened.time_record.seconds_of[name]
        assert kernels[name].seconds == pytest.approx(measured, rel=0.12)


def test_untuned_products_are_predicted_as_a_tuner_would_choose_them() -> None:
    errors = []
    for record in sorted(DUMPS.glob("*/h100_sxm-auto-tuned-*/time_record.json")):
        tuned, untuned = record.parent, record.parents[1] / f"h200-triton-jax{GOLDEN_JAXLIB}"
        if record.parents[1].name.startswith("resnet") or not untuned.exists():
            continue
        measured = open_subject(tuned).time_record
        prediction = open_subject(untuned, PredictionSettings(target="h100_sxm")).prediction
        assert measured is not None
        assert prediction is not None
        if any(kernel.work.as_tuned for kernel in prediction.kernels):
            errors.append(prediction.kernel_seconds / sum(measured.seconds_of.values()) - 1)
            assert any("XLA's default tiles" in text for text in prediction.assumptions)
    assert len(errors) == 14
    assert mean(map(abs, errors)) < 0.12


class _Forgetful(dict[tuple[object, ...], KernelWork]):
    """A dictionary that keeps nothing, and lists what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[object, ...]] = []

    def __setitem__(self, key: tuple[object, ...], work: KernelWork) -> None:
        self.given.append(key)


@pytest.mark.parametrize(
    "name", ["qwen3-decode", "qwen3-train", pytest.param("resnet50-train", marks=pytest.mark.slow)]
)
def test_kernels_that_are_taken_for_equal_have_the_same_work(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (DUMPS / name).glob(f"h100_sxm-*auto-tuned-jax{GOLDEN_JAXLIB}")
    monkeypatch.setattr(kernel_work, "_KNOWN", {})
    remembered = open_subject(path).prediction
    monkeypatch.setattr(kernel_work, "_KNOWN", forgetful := _Forgetful())
    anew = open_subject(path).prediction
    assert remembered is not None and anew is not None
    for one, other in zip(remembered.kernels, anew.kernels, strict=True):
        assert one.work == other.work
    # Layers have equal kernels.
    assert len(set(forgetful.given)) < len(forgetful.given)


def test_trips_that_a_plan_does_not_state_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    def times(*given: str) -> dict[str, float | None]:
        path = ROOT / "tests/data/jaxlib-0.11.2/step"
        assert main(["show", str(path), "--time", "--target", "h200", "--json", *given]) == 0
        time: dict[str, float | None] = json.loads(capsys.readouterr().out)["time"]
        return time

    unknown, seven, nine = times(), times("--trips", "7"), times("--trips", "9")
    assert unknown["predicted_step_seconds"] is None
    least = unknown["predicted_at_least_seconds"]
    assert least is not None and seven["predicted_at_least_seconds"] is None
    assert least < (seven["predicted_step_seconds"] or 0) < (nine["predicted_step_seconds"] or 0)


def test_kernels_of_a_step_have_as_many_features_as_timed_ones() -> None:
    shipped = shipped_calibration("h100_sxm")
    assert shipped is not None
    for name in ("qwen3-train", "spectral-diffusion-train", "float8-linear-step"):
        for folder in DUMPS.glob(f"{name}/h100_sxm-*auto-tuned-*"):
            prediction = open_subject(folder).prediction
            assert prediction is not None
            for kernel in prediction.kernels:
                timed = shipped.of_kind(kernel.work.kind)
                assert timed.coordinates in (0, len(kernel.work.point)), kernel.work.kind


def test_products_are_slower_where_they_keep_the_power_at_its_limit() -> None:
    h200, a100 = device_of_target("h200"), device_of_target("a100_sxm_80")
    cases = {(19e-3, 19e-3): False, (25e-3, 28e-3): True, (30e-3, 78e-3): False}
    cases |= {(70e-3, 150e-3): True, (70e-3, 300e-3): False}
    for (products, total), slower in cases.items():
        assert (sustained_factor(h200, products, total) > 1) is slower, (products, total)
        assert sustained_factor(a100, products, total) == 1
