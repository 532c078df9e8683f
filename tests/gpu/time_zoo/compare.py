"""Compares predicted times with the records of the zoo: tables as Markdown.

python -m tests.gpu.time_zoo.compare
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median

from tests.gpu.records import read_record
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost import StepCost, step_cost
from xlapipe.time.predict import Prediction, predict
from xlapipe.time.predict.calibration import shipped_calibration

HERE = Path(__file__).parent
RECORDS = HERE / "records"
ZOOS = (HERE / "zoos.txt").read_text(encoding="utf-8").split()
"""Records of one GPU, in the order in which they were timed."""
TARGETS = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100_sxm"}


@dataclass(frozen=True)
class Compared:
    """A program, as predicted and as measured.

    Attributes:
      kernel_seconds, span_seconds: of all kernels and of the span, while the profiler runs.
      call_seconds: of a call that is awaited, without the profiler.
      seconds_of: of each kernel.
    """

    name: str
    cost: StepCost
    prediction: Prediction
    kernel_seconds: float
    span_seconds: float
    call_seconds: float
    seconds_of: dict[str, float]

    @property
    def kernel_error(self) -> float:
        """Relative error of the sum over the kernels."""
        return self.prediction.kernel_seconds / self.kernel_seconds - 1

    @property
    def counted_seconds(self) -> float:
        """The predicted span, or what it is at least, where a part is not counted."""
        return self.prediction.span_seconds

    @property
    def span_error(self) -> float:
        """Relative error of the span."""
        return self.counted_seconds / self.span_seconds - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured span is in the interval, which is that of a step."""
        step, predicted = self.prediction.step_seconds, self.prediction
        if not step or not predicted.low_seconds or not predicted.high_seconds:
            return self.span_seconds >= (predicted.at_least_seconds or 0.0)
        off = self.span_seconds / self.counted_seconds * step
        return predicted.low_seconds <= off <= predicted.high_seconds

    @property
    def call_error(self) -> float:
        """Relative error of a call."""
        latency = self.prediction.latency_seconds or self.counted_seconds
        return latency / self.call_seconds - 1


@cache
def compared(records: str, only: str = "") -> tuple[Compared, ...]:
    """The programs of a record.

    Args:
      records: one of `ZOOS`, `two` or `two_h100`.
      only: the name of the one that is wanted; empty for all.
    """
    about, profiles = read_record(RECORDS / f"{records}.tar.xz", only)
    target = TARGETS[about.device]
    device, calibration = device_of_target(target), shipped_calibration(target)
    assert device is not None
    assert calibration is not None
    programs = []
    for profile in profiles:
        cost, times = step_cost(profile.plan, device), profile.times
        assert cost is not None
        program = Compared(
            profile.name,
            cost,
            predict(profile.plan, cost, calibration),
            times.kernel_seconds,
            times.span_seconds,
            times.wall_seconds,
            {kernel.name: kernel.seconds for kernel in times.measured},
        )
        programs.append(program)
    return tuple(programs)


def halves() -> dict[str, list[str]]:
    """Names of the development and of the evaluation half."""
    text = (HERE / "halves.json").read_text(encoding="utf-8")
    parsed: dict[str, list[str]] = json.loads(text)
    return parsed


def summary(programs: Sequence[Compared]) -> dict[str, float]:
    """Errors over programs, and of the kernels weighted by time."""
    errors = sorted(abs(item.kernel_error) for item in programs)
    spans = sorted(abs(item.span_error) for item in programs)
    off = total = 0.0
    for item in programs:
        for kernel in item.prediction.kernels:
            measured = item.seconds_of.get(kernel.name, 0.0)
            total += measured
            off += abs(kernel.seconds - measured) if measured else 0.0
    return {
        "programs": len(programs),
        "mean": mean(errors),
        "median": median(errors),
        "nine_of_ten": errors[math.ceil(0.9 * len(errors)) - 1],
        "largest": errors[-1],
        "within_15": sum(error <= 0.15 for error in errors) / len(errors),
        "kernels": off / total,
        "span_mean": mean(spans),
        "span_median": median(spans),
        "call_mean": mean(abs(item.call_error) for item in programs),
        "interval": mean(item.is_inside for item in programs),
        "width": median(
            item.prediction.high_seconds / item.prediction.low_seconds
            for item in programs
            if item.prediction.high_seconds and item.prediction.low_seconds
        ),
    }


def error_row(name: str, items: Sequence[Compared]) -> str:
    """The errors of some programs together, as a row of a Markdown table."""
    row = summary(items)
    numbers = [f"{row[key]:.1%}".replace("%", " %") for key in list(row)[1:-1]]
    return f"| {name} | {len(items)} | {' | '.join(numbers)} |"


def tables(programs: Sequence[Compared], *later_zoos: Sequence[Compared]) -> Iterator[str]:
    """Errors by half and by kind of kernel, as Markdown.

    Args:
      programs: of the first zoo.
      later_zoos: the programs of each later one, in the order of `ZOOS`.
    """
    names = halves()
    both = {half: [p for p in programs if p.name in names[half]] for half in names}
    columns = (
        *("half", "programs", "mean", "median", "9 of 10", "largest", "within 15 %"),
        *("kernels by time", "span, mean", "span, median", "call, mean", "in the interval"),
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    later = {
        f"{name} zoo": items for name, items in zip(("second", *ZOOS[2:]), later_zoos, strict=True)
    }
    for half, items in {**both, **later}.items():
        yield error_row(half, items)
    yield ""
    yield "| kind of kernel | kernels | measured, µs | predicted / measured | error by time |"
    yield "|---|--:|--:|--:|--:|"
    kinds: dict[str, list[float]] = {}
    for item in (*both["evaluation"], *later_zoos[0]):
        for kernel in item.prediction.kernels:
            seconds = item.seconds_of.get(kernel.name)
            if seconds:
                row_of = kinds.setdefault(kernel.work.kind, [0, 0.0, 0.0, 0.0])
                row_of[0] += 1
                row_of[1] += seconds
                row_of[2] += kernel.seconds
                row_of[3] += abs(kernel.seconds - seconds)
    for kind, (count, seconds, sum_, off) in sorted(kinds.items(), key=lambda i: -i[1][1]):
        if seconds > 1e-4:
            yield (
                f"| {kind} | {count:,.0f} | {seconds * 1e6:,.0f} | {sum_ / seconds:.2f} | "
                f"{off / seconds:.0%} |"
            ).replace("%", " %")


def main() -> None:
    zoos = [compared(name) for name in ZOOS]
    print("\n".join(tables(*zoos)))
    for item in compared("two"):
        print(f"{item.name}: kernels {item.kernel_error:+.1%}, span {item.span_error:+.1%}")


if __name__ == "__main__":
    main()
