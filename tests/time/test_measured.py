"""A profile's kernels joined with a plan: by instruction, by order and by neighbours."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB, ROOT
from tests.shared.small_hlo import plan_of_text
from xlapipe.cli import main
from xlapipe.dump.time_record import TIME_RECORD, TimeRecord, read_time_record, write_time_record
from xlapipe.errors import DumpError
from xlapipe.plans import Plan, Thunk
from xlapipe.time.profiles.joined_profile import (
    CallInterval,
    KernelEvent,
    MeasuredKernel,
    MeasuredStep,
    expected_launches,
    join_profile,
    split_steps,
)

PROGRAM = """HloModule m, is_scheduled=true

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %first = f32[8]{0} negate(%a)
  %gemm = f32[8]{0} custom-call(%first), custom_call_target="__cublas$gemm"
  %second = f32[8]{0} negate(%gemm)
  ROOT %third = f32[8]{0} abs(%second)
}
"""
TEXTS = Path(__file__).with_name("texts")
ASYNCHRONOUS = (TEXTS / "asynchronous_hlo.txt").read_text(encoding="utf-8")
# The first and the third instruction are launched as the same device function.
THUNKS = (
    Thunk("kCommandBuffer", 0),
    Thunk("kCustomKernel", 1, "wrapped_negate grid: [1, 1, 1]"),
    Thunk("kGemm", 1),
    Thunk("kCustomKernel", 1, "wrapped_negate grid: [1, 1, 1]"),
    Thunk("kCustomKernel", 1, "quantise__1 grid: [1, 1, 1]"),
)


@pytest.fixture
def plan() -> Plan:
    return replace(plan_of_text(PROGRAM), thunks=THUNKS)


def events(*rows: tuple[str, str | None, float, float]) -> list[KernelEvent]:
    return [KernelEvent(name, op, start, duration) for name, op, start, duration in rows]


def seconds(measured: MeasuredStep) -> dict[str, tuple[int, float]]:
    return {
        kernel.name: (kernel.launches, pytest.approx(kernel.seconds)) for kernel in measured.kernels
    }


def test_launches_have_the_kernel_names_of_the_thunks(plan: Plan) -> None:
    launches = [(launch.instruction, launch.kernel) for launch in expected_launches(plan)]
    assert launches == [
        ("first", "wrapped_negate"),
        ("gemm", "gemm"),
        ("second", "wrapped_negate"),
        ("third", "quantise"),
    ]


def test_kernels_of_a_command_buffer_are_joined_in_order(plan: Plan) -> None:
    measured = join_profile(
        plan,
        events(
            ("wrapped_negate", "command_buffer_1", 0, 1000),
            ("cutlass_kernel", "command_buffer_1", 1100, 5000),
            ("cutlass_reduce", "command_buffer_1", 6200, 500),
            ("wrapped_negate", "command_buffer_1", 7000, 2000),
            ("quantise", "command_buffer_1", 9500, 100),
        ),
        steps=1,
    )
    assert seconds(measured) == {
        "first": (1, 1e-6),
        "gemm": (2, 5.5e-6),
        "second": (1, 2e-6),
        "third": (1, 1e-7),
    }
    assert measured.matched_share == 1
    assert measured.by_name_seconds == 0
    assert measured.by_order_seconds == pytest.approx(8.6e-6)
    assert measured.span_seconds == pytest.approx(9.6e-6)
    assert measured.busy_seconds == pytest.approx(8.6e-6)


def test_kernels_outside_command_buffers_are_joined_by_instruction(plan: Plan) -> None:
    measured = join_profile(
        plan,
        events(
            ("wrapped_negate", "second", 0, 1000),
            ("wrapped_negate", "first", 2000, 3000),
            ("some_kernel", "gemm", 2500, 1000),
            ("memset", None, 9000, 1000),
        ),
        steps=1,
    )
    assert seconds(measured)["second"] == (1, 1e-6)
    assert seconds(measured)["first"] == (1, 3e-6)
    assert measured.by_name_seconds == pytest.approx(5e-6)
    # Only `third` is left for the memset, which has no neighbour in the schedule.
    assert seconds(measured)["third"] == (1, 1e-6)
    assert measured.busy_seconds == pytest.approx(5e-6)


def test_kernels_of_a_collective_are_joined_by_what_its_start_wraps() -> None:
    plan = plan_of_text(ASYNCHRONOUS)
    rows = [("ncclDevKernel_AllGather_RING_LL", "gather.1", 0, 3000), ("k", "double", 10, 500)]
    measured = join_profile(plan, events(*rows), steps=1)
    assert seconds(measured) == {"gather-start": (1, 3e-6), "double": (1, 5e-7)}
    assert measured.by_order_seconds == 0


COPIES = """HloModule m, is_scheduled=true

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %first = f32[8]{0} copy(%a)
  %sum = f32[8]{0} all-reduce(%first), replica_groups={{0,1}}, to_apply=%add
  %second = f32[8]{0} copy(%sum)
  ROOT %last = f32[8]{0} abs(%second)
}
"""


def test_an_event_joined_by_name_does_not_begin_the_launches_again() -> None:
    """Both copies are between the same two kernels; the collective between them has a name."""
    measured = join_profile(
        plan_of_text(COPIES),
        events(
            ("MemcpyD2D", "command_buffer", 0, 1000),
            ("ncclDevKernel", "sum", 1000, 5000),
            ("MemcpyD2D", "command_buffer_1", 6000, 2000),
            ("last", "command_buffer_1", 8000, 100),
        ),
        steps=1,
    )
    assert seconds(measured) == {
        "first": (1, 1e-6),
        "sum": (1, 5e-6),
        "second": (1, 2e-6),
        "last": (1, 1e-7),
    }


def test_what_no_instruction_launched_is_unmatched(plan: Plan) -> None:
    complete = events(
        ("a", "first", 0, 1000), ("b", "gemm", 1, 1), ("c", "second", 2, 1), ("d", "third", 3, 1)
    )
    measured = join_profile(plan, [*complete, *events(("other", None, 10, 3000))], steps=1)
    assert [(kernel.name, kernel.launches) for kernel in measured.unmatched] == [("other", 1)]
    assert measured.matched_share == pytest.approx(1003 / 4003)


def test_steps_are_equal_parts_and_their_median_counts(plan: Plan) -> None:
    rows = [("k", "first", 100.0 * step, duration) for step, duration in enumerate((10, 30, 80))]
    measured = join_profile(plan, events(*rows), steps=3)
    assert measured.kernels == (MeasuredKernel("first", 1, pytest.approx(30e-9)),)
    assert measured.steps == 3


CALLS = [CallInterval(0, 1000), CallInterval(1000, 3000), CallInterval(3000, 4000)]


def test_a_call_is_the_span_and_what_the_host_takes_before_and_after(plan: Plan) -> None:
    rows = events(
        ("k", "first", 400.0, 100),
        ("k", "second", 550.0, 50),
        ("k", "first", 1900.0, 1000),
        ("k", "first", 3300.0, 100),
    )
    measured = join_profile(plan, rows, 3, CALLS)
    assert measured.before_seconds == pytest.approx(400e-9)  # of 400, 900 and 300
    assert measured.after_seconds == pytest.approx(400e-9)  # of 400, 100 and 600
    assert measured.span_seconds == pytest.approx(200e-9)
    assert measured.call_seconds == pytest.approx(1000e-9)


@pytest.mark.parametrize(
    "row",
    [("k", "first", 5000.0, 100), ("k", "first", 3950.0, 100), ("k", "first", 2500.0, 10)],
    ids=["after_the_calls", "across_the_end", "none_in_the_last_call"],
)
def test_kernels_outside_the_calls_leave_the_host_unknown(
    row: tuple[str, str, float, float], plan: Plan
) -> None:
    rows = events(("k", "first", 400.0, 100), ("k", "first", 1900.0, 100), row)
    measured = join_profile(plan, rows, 3, CALLS)
    assert measured.before_seconds is measured.after_seconds is measured.call_seconds is None
    assert measured.steps == 3


def test_steps_of_unequal_numbers_are_cut_at_the_longest_gaps() -> None:
    rows = events(
        ("a", None, 0, 10), ("b", None, 11, 10), ("a", None, 500, 10), ("a", None, 900, 10)
    )
    assert [len(part) for part in split_steps(rows, 3)] == [2, 1, 1]


def record() -> TimeRecord:
    return TimeRecord.of(
        MeasuredStep(
            kernels=(MeasuredKernel("a", 1, 1e-6), MeasuredKernel("b", 2, 5e-6)),
            unmatched=(MeasuredKernel("memset", 1, 1e-7),),
            by_name_seconds=6e-6,
            by_order_seconds=0.0,
            span_seconds=7e-6,
            busy_seconds=6.1e-6,
            steps=10,
            before_seconds=3e-6,
            after_seconds=1e-6,
        ),
        wall_seconds=2e-3,
        profiled_wall_seconds=2.5e-3,
        device="NVIDIA H200",
        driver="580",
    )


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_time_record(tmp_path) is None
    write_time_record(tmp_path, record())
    again = read_time_record(tmp_path)
    assert again is not None
    assert again.seconds_of == {"a": 1e-6, "b": 5e-6}
    assert again.to_json() == record().to_json()


def test_record_without_calls_is_read(tmp_path: Path) -> None:
    data = record().to_json()
    del data["before_seconds"], data["after_seconds"]
    (tmp_path / TIME_RECORD).write_text(json.dumps(data))
    read = read_time_record(tmp_path)
    assert read is not None
    assert read.call_seconds is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_seconds", True),
        ("wall_seconds", "1"),
        ("span_seconds", 1e9),
        ("busy_seconds", -1.0),
        ("steps", 0),
        ("steps", 1.5),
        ("kernels", {}),
        ("kernels", [["a", 1, 1.0]]),
        ("device", 3),
        ("device", ""),
        ("device", "a\x1b[2J"),
        ("versions", []),
    ],
)
def test_a_field_of_another_form_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path = write_time_record(tmp_path, record())
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}, indent=1))
    with pytest.raises(DumpError, match=rf"time_record\.json: {name}.*: expected .*, found"):
        read_time_record(tmp_path)


def test_a_record_of_another_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = ROOT / f"hlo_dumps/qwen3-prompts-hopper/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
    dump = Path(shutil.copytree(golden, tmp_path / "dump"))
    path = dump / TIME_RECORD
    path.write_text(json.dumps({**json.loads(path.read_text()), "device": "NVIDIA A100-SXM4-80GB"}))
    assert main(["show", str(dump), "--time"]) == 2
    expected = "device: expected 'NVIDIA H100 80GB HBM3', as in the manifest, found 'NVIDIA A100"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 2}', '{"schema_version": 1}'])
def test_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / TIME_RECORD).write_text(text)
    with pytest.raises(DumpError, match=r"xlapipe run DIR --profile"):
        read_time_record(tmp_path)
