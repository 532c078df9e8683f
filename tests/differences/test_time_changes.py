"""How `diff` states time."""

from dataclasses import replace

import pytest

from tests.shared.sample_records import predicted
from xlapipe.differences.time_changes import LineCost, TimeChange, time_changes
from xlapipe.plans import SourceLine
from xlapipe.report.units import change_class
from xlapipe.time.cost import KernelCost, StepCost
from xlapipe.time.cost.step_cost import Range
from xlapipe.time.predict.kernel_time import KernelTime
from xlapipe.time.predict.prediction import PredictedKernel
from xlapipe.time.predict.work import KernelWork

NORM = KernelCost(
    name="norm",
    kind="kLoop",
    op_name=None,
    source=SourceLine("block.py", 31),
    launches=1,
    read_bytes=1000,
    written_bytes=500,
    flops={},
    memory_seconds=2e-6,
    compute_seconds=0.0,
)
GEMM = replace(
    NORM, name="gemm", source=SourceLine("block.py", 40), flops={"bf16": 7}, memory_seconds=9e-6
)

WORK = KernelWork("loop", (), 0, 0, 0.0, {}, 0, "")


def step(*kernels: KernelCost) -> StepCost:
    floor = sum(kernel.floor_seconds or 0.0 for kernel in kernels)
    traffic = sum(kernel.touched_bytes for kernel in kernels)
    return StepCost(tuple(kernels), Range(traffic, traffic), (floor, 0.0))


def test_lines_that_differ_follow_the_step() -> None:
    twice = replace(NORM, read_bytes=2000, memory_seconds=40e-6)
    changes = time_changes(step(NORM, GEMM), step(twice, GEMM))
    assert [change.text for change in changes] == [
        "least time +38.0 µs (longer): the step reads 1,000 B more",
        "least time +38.0 µs (longer): block.py:31 reads 1,000 B more",
    ]


@pytest.mark.parametrize(
    ("source", "a", "b", "predicted"),
    [
        (None, 10e-6, 15e-6, "; predicted 10.0 -> 15.0 µs (+50.0%)"),
        (None, 0.0, 15e-6, "; predicted 0.0 -> 15.0 µs"),
        (None, None, 15e-6, ""),
        ("block.py:31", 10e-6, 15e-6, "; predicted +5.0 µs"),
        ("block.py:31", 10.06e-6, 10e-6, "; predicted -0.1 µs"),
        ("block.py:31", 10e-6, 10.04e-6, ""),
        ("block.py:31", 10e-6, None, ""),
    ],
)
def test_predicted_times_follow_what_changed(
    source: str | None, a: float | None, b: float | None, predicted: str
) -> None:
    change = TimeChange(source, LineCost(1e-6, a), LineCost(1e-6, b, read_bytes=8))
    what = f"{source or 'the step'} reads 8 B more{predicted}"
    assert change.text == f"same least time: {what}"
    known = a is not None and b is not None
    assert change.predicted_delta_seconds == (pytest.approx((b or 0) - (a or 0)) if known else None)


def test_the_time_of_a_tpu_is_estimated() -> None:
    change = TimeChange(None, LineCost(1e-6, 1e-5), LineCost(1e-6, 2e-5), "estimated")
    assert change.text.endswith("; estimated 10.0 -> 20.0 µs (+100.0%)")


def test_fewer_bytes_that_take_longer_read_as_that() -> None:
    slower = replace(NORM, read_bytes=500, memory_seconds=40e-6)
    change, _ = time_changes(step(NORM, GEMM), step(slower, GEMM))
    text = "least time +38.0 µs (longer): although the step reads 500 B less"
    assert change.text == text
    back, _ = time_changes(step(slower, GEMM), step(NORM, GEMM))
    assert back.text == "least time -38.0 µs (shorter): although the step reads 500 B more"


def test_operations_explain_a_time_that_bytes_do_not() -> None:
    slower = replace(GEMM, flops={"bf16": 3 * 10**9}, memory_seconds=40e-6)
    faster = replace(slower, flops={"bf16": 10**9}, read_bytes=1500, memory_seconds=2e-6)
    change, _ = time_changes(step(slower), step(faster))
    assert change.text == (
        "least time -38.0 µs (shorter): the step computes 2,000,000,000 operations less, "
        "reads 500 B more"
    )


def test_times_by_line_follow_operations_to_their_new_lines() -> None:
    """In B, the product is one line further down, where A has another operation."""

    def at(line: int, kernel: KernelCost) -> KernelCost:
        return replace(kernel, source=SourceLine("block.py", line))

    a = step(at(31, GEMM), at(32, NORM), at(33, replace(NORM, name="gone")))
    b = step(at(32, GEMM), at(33, replace(NORM, name="norm.2", read_bytes=2000)))
    changes = time_changes(a, b, pairs={"gemm": "gemm", "norm": "norm.2"})
    assert [(change.source, change.b.read_bytes - change.a.read_bytes) for change in changes] == [
        (None, 0),
        ("block.py:33 of A", -1000),
        ("block.py:33", 1000),
    ]


@pytest.mark.parametrize(
    ("name", "difference", "expected"),
    [
        ("temp_bytes", 8, "worse"),
        ("total_allocation_bytes", -8, "better"),
        ("aliased_bytes", 8, "better"),
        ("aliased_bytes", -8, "worse"),
    ],
)
def test_more_bytes_are_worse_but_for_those_updated_in_place(
    name: str, difference: int, expected: str
) -> None:
    assert change_class(name, difference) == expected


def test_a_kernel_of_one_plan_and_of_an_unknown_gpu() -> None:
    unknown = replace(NORM, memory_seconds=None)
    changes = time_changes(replace(step(unknown), floors=None), replace(step(), floors=None))
    assert [change.text for change in changes] == [
        "the step reads 1,000 B less, writes 500 B less, launches 0 instead of 1",
        "block.py:31 reads 1,000 B less, writes 500 B less, launches 0 instead of 1",
    ]


def test_no_time_is_stated_beside_a_plan_of_an_unknown_gpu() -> None:
    unknown = replace(step(replace(GEMM, memory_seconds=None)), floors=None)
    for a, b in ((step(NORM), unknown), (unknown, step(NORM))):
        assert [change.delta_seconds for change in time_changes(a, b)] == [None, None, None]


def test_bytes_that_take_no_more_time_are_stated_after_those_that_do() -> None:
    """The product is bound by its operations, whatever it reads."""
    bound = replace(GEMM, compute_seconds=9e-6)
    more = replace(bound, read_bytes=5000, memory_seconds=8e-6)
    slower = replace(NORM, memory_seconds=3e-6)
    changes = time_changes(step(bound, NORM), step(more, slower))
    assert [change.text for change in changes][1:] == [
        "least time +1.0 µs (longer): block.py:31 has the same bytes and launches",
        "same least time: block.py:40 reads 4,000 B more",
    ]
    (whole, line) = time_changes(step(bound), step(more))
    assert whole.text == "same least time: the step reads 4,000 B more"
    assert line.text == "same least time: block.py:40 reads 4,000 B more"


def test_a_line_whose_predicted_time_alone_grew_is_listed_first() -> None:
    a, b = (
        replace(
            predicted(12e-6, 1e-6, 2e-5),
            kernels=tuple(
                PredictedKernel(
                    name, 1, seconds, KernelTime(seconds, (), 1, "calibrated", 0), WORK, False
                )
                for name, seconds in (("norm", 3e-6), ("gemm", gemm))
            ),
        )
        for gemm in (9e-6, 19e-6)
    )
    more = replace(NORM, read_bytes=1008, memory_seconds=2.001e-6)
    _, first, second = time_changes(step(NORM, GEMM), step(more, GEMM), (a, b))
    assert first.text.startswith("same least time: block.py:40")
    assert first.text.endswith("; predicted +10.0 µs")
    assert second.source == "block.py:31"
