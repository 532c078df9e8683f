"""`show --time` and the `time` of its JSON."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.tpu_texts import write_dump
from xlapipe.cli import main
from xlapipe.dump.time_record import TimeRecord, write_time_record
from xlapipe.report.subjects import open_subject
from xlapipe.report.time_figures import TimeRow, step_time
from xlapipe.report.time_lines import group_by_source, time_section
from xlapipe.report.units import microseconds
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.profiles.joined_profile import MeasuredKernel, MeasuredStep

GOLDEN = (
    Path(__file__).resolve().parents[2]
    / f"hlo_dumps/spectral-diffusion/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
)
KERNELS = ("gemm_fusion_dot", "loop_convert_fusion", "gemm_fusion_dot_general.3")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "dump")
    (tmp_path / "dump" / "time_record.json").unlink(missing_ok=True)
    return tmp_path / "dump"


def record(*names: str) -> TimeRecord:
    return TimeRecord.of(
        MeasuredStep(
            kernels=tuple(MeasuredKernel(name, 1, 4e-6) for name in names),
            unmatched=(),
            by_name_seconds=4e-6 * len(names),
            by_order_seconds=0.0,
            span_seconds=15e-6,
            busy_seconds=12e-6,
            steps=10,
        ),
        wall_seconds=30e-6,
        profiled_wall_seconds=40e-6,
        device="NVIDIA H100 80GB HBM3",
    )


def test_json_has_the_figures_of_the_step_and_of_each_kernel(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(dump), "--time", "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert [kernel["name"] for kernel in time["kernels"]] == list(KERNELS)
    assert time["traffic_bytes"] == sum(
        kernel["read_bytes"] + kernel["written_bytes"] for kernel in time["kernels"]
    )
    assert time["floor_seconds"] == pytest.approx(
        sum(kernel["floor_seconds"] for kernel in time["kernels"])
    )
    # 2,048 × 128 × 256 multiply-adds in each product.
    flops = [kernel["flops"] for kernel in time["kernels"]]
    assert flops == [2 * 2048 * 128 * 256, 0, 2 * 2048 * 128 * 256]
    assert {kernel["measured_seconds"] for kernel in time["kernels"]} == {None}
    assert {kernel["launches"] for kernel in time["kernels"]} == {1}
    assert all(kernel["source"] for kernel in time["kernels"])


def test_measured_times_are_shown_beside_the_floor(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_time_record(dump, record(*KERNELS))
    assert main(["show", str(dump), "--time"]) == 0
    text = capsys.readouterr().out
    assert "measured 12.0 µs in kernels, 30.0 µs per call on NVIDIA H100 80GB HBM3" in text
    assert "33.3 %" in text


def test_record_of_another_plan_is_not_shown(dump: Path) -> None:
    write_time_record(dump, record("another_fusion"))
    time = step_time(open_subject(dump))
    assert time is not None
    assert time.measured is None


def test_show_without_time_prints_none(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump)]) == 0
    assert "floor" not in capsys.readouterr().out


def test_floor_on_another_gpu_and_of_a_file_that_names_none(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def floor(path: Path, *options: str) -> float | None:
        assert main(["show", str(path), "--time", "--json", *options]) == 0
        seconds: float | None = json.loads(capsys.readouterr().out)["time"]["floor_seconds"]
        return seconds

    proto = dump / "after_optimizations.hlo.pb"
    assert floor(proto) is None
    on_h200, on_a100 = (floor(proto, "--target", name) for name in ("h200", "a100_sxm_80"))
    assert on_h200 is not None
    # Every kernel is bound by memory, and the smaller L2 cache of the A100 still holds all.
    assert on_a100 == pytest.approx(on_h200 * 4_800_000 / 2_039_040, rel=1e-3)
    assert floor(dump, "--target", "a100_sxm_80") == on_a100
    assert main(["show", str(dump), "--time", "--target", "h300"]) == 2
    assert "xlapipe targets" in capsys.readouterr().err


def test_text_states_how_much_of_the_floor_assumes_that_kernels_read_operands_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = GOLDEN.parent.parent / "qwen3-prompts-hopper"
    (hopper,) = folder.glob("h100_sxm-auto-tuned-*")
    assert main(["show", str(hopper), "--time"]) == 0
    text = capsys.readouterr().out
    assert "of the floor assume that" in text
    assert "whose code is unknown read their operands whole" in text
    # The code of a kernel through Triton says what it reads.
    persistent = GOLDEN.parent.parent / "qwen3-generate-persistent"
    for dump in (GOLDEN, *persistent.glob("h100_sxm-auto-tuned-*")):
        assert main(["show", str(dump), "--time"]) == 0
        assert "of the floor assume" not in capsys.readouterr().out


def test_lines_of_a_dump_without_a_module() -> None:
    lines = time_section(None).lines
    (line,) = lines
    assert line.startswith("unknown, because the dump has no complete HLO module; fix: `xlapipe")


def test_files_of_libtpu_have_a_time_on_the_tpu_that_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_dump(tmp_path / "files"))
    assert main(["show", path, "--time"]) == 0
    assert "whose speeds are known; fix: add --target NAME" in capsys.readouterr().out
    assert main(["show", path, "--time", "--target", "v6e"]) == 0
    text = capsys.readouterr().out
    assert "estimated step" in text and "predicted" not in text
    assert main(["show", path, "--time", "--target", "h100_sxm"]) == 2
    assert "devices of its own vendor" in capsys.readouterr().err


def test_kernels_of_one_source_line_are_added_up() -> None:
    row = TimeRow(
        name="a",
        kind="kLoop",
        source="layer.py:3",
        launches=2,
        read_bytes=10,
        written_bytes=1,
        cached_bytes=0,
        flops=None,
        bound="memory",
        floor_seconds=1e-6,
        measured_seconds=2e-6,
    )
    other = replace(row, name="b", flops=5, bound="compute")
    longest = replace(other, name="c", floor_seconds=4e-6)
    (line,) = group_by_source([row, other, longest])
    assert (line.launches, line.read_bytes, line.flops) == (6, 30, None)
    assert line.floor_seconds == pytest.approx(6e-6)
    assert line.bound == "compute"
    assert microseconds(line.measured_seconds) == "6.0 µs"


def test_a_trace_has_each_kernel_in_order_and_ends_with_the_step(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "step.json"
    assert main(["show", str(dump), "--trace", str(trace)]) == 0
    assert capsys.readouterr().out == f"{trace}: {trace.stat().st_size:,} B\n"
    events = json.loads(trace.read_text())["traceEvents"]
    streams = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    kernels = [e for e in events if e["ph"] == "X" and streams[e["tid"]] == "compute"]
    prediction = open_subject(dump).prediction
    assert prediction is not None
    assert {e["name"] for e in kernels} == {kernel.name for kernel in prediction.kernels}
    assert sum(e["args"]["launches in the step"] for e in kernels) == sum(
        kernel.launches for kernel in prediction.kernels
    )
    ends = [0.0, *(e["ts"] + e["dur"] for e in kernels)]
    assert all(e["ts"] >= end for e, end in zip(kernels, ends, strict=False))
    assert ends[-1] == pytest.approx(prediction.span_seconds * 1e6, abs=0.01)


def test_without_a_predicted_time_no_trace_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hlo = tmp_path / "module.hlo.pb"
    shutil.copy(GOLDEN / "after_optimizations.hlo.pb", hlo)
    trace = tmp_path / "step.json"
    assert main(["show", str(hlo), "--trace", str(trace)]) == 2
    assert "fix: add --target NAME" in capsys.readouterr().err
    assert not trace.exists()


def test_a_slower_host_makes_calls_longer_and_no_kernel(dump: Path) -> None:
    as_timed = open_subject(dump).prediction
    slower = open_subject(dump, PredictionSettings(host=2.0)).prediction
    assert as_timed is not None
    assert slower is not None
    assert slower.kernel_seconds == as_timed.kernel_seconds
    assert as_timed.latency_seconds is not None
    assert slower.latency_seconds is not None
    assert slower.latency_seconds > 1.5 * as_timed.latency_seconds
