"""A step's time: floor, predicted and measured times, per kernel and in total."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xlapipe.devices.targets.device import Device
from xlapipe.dump.time_record import TimeRecord
from xlapipe.plans.once import once_per_object
from xlapipe.plans.short_repr import short_repr
from xlapipe.report.records import fields_of, named, row_of
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.predict import Prediction, basis_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """A kernel, or the kernels of a source line; figures are of all launches in a step.

    Attributes:
      kind: None for a source line.
      read_bytes, written_bytes, cached_bytes, unknown_bytes: as in `KernelCost`.
      flops: flops of all types; None if unknown.
      stated: whether bytes and operations are the author's statement.
    """

    name: str
    kind: str | None = None
    source: str | None
    op_name: str | None = None
    launches: int
    read_bytes: int
    written_bytes: int
    cached_bytes: int
    unknown_bytes: int = 0
    flops: int | None
    bound: str | None
    floor_seconds: float | None
    measured_seconds: float | None
    predicted_seconds: float | None = None
    basis: str | None = None
    stated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of a step, as `show --json` has it under `time`; times are seconds per step.

    Attributes:
      traffic_bytes, floor_seconds: the least that a step needs.
      traffic_at_most_bytes: the most that its kernels may touch; None if a trip count is unknown.
      speeds: of the GPU, which floors are computed with; None if the dump does not name it.
      predicted_step_seconds: of a step in a loop that calls it back to back; None if no GPU is
        known, or a part is not counted: `predicted_at_least_seconds` is then what the others take.
        `predicted_low_seconds` and `predicted_high_seconds` hold the truth in 9 of 10 programs.
      predicted_latency_seconds: of one call until its results are awaited.
      predicted_span_seconds: from the first kernel to the last one, as a profiler shows it.
    """

    __repr__ = short_repr

    traffic_bytes: int
    traffic_at_most_bytes: int | None
    floor_seconds: float | None
    bound_seconds: Mapping[str, float]
    launches: int
    speeds: Device | None
    measured: TimeRecord | None
    predicted_step_seconds: float | None
    predicted_at_least_seconds: float | None
    predicted_kernel_seconds: float | None
    predicted_low_seconds: float | None
    predicted_high_seconds: float | None
    predicted_latency_seconds: float | None
    predicted_span_seconds: float | None
    prediction: Prediction | None
    kernels: tuple[TimeRow, ...]

    def json_fields(self) -> dict[str, Any]:
        """The fields, with what JSON has of the records among them."""
        return {
            **fields_of(self),
            "speeds": self.speeds and _speeds(self.speeds),
            "measured": self.measured and named(self.measured, *_MEASURED),
            "prediction": self.prediction
            and {**named(self.prediction, *_ABOUT), "basis_seconds": basis_of(self.prediction)},
        }


_ABOUT = (
    *("device", "scaled_from", "assumptions", "network", "mfu", "mfu_text", "launch_bound"),
    *("is_estimate", "losses"),
)
_MEASURED = (
    *("device", "wall_seconds", "profiled_wall_seconds", "span_seconds", "busy_seconds"),
    *("before_seconds", "after_seconds", "kernel_seconds", "by_name_seconds", "by_order_seconds"),
    "matched_share",
)


def _speeds(device: Device) -> dict[str, Any]:
    return {
        **named(device, "l2_bytes", "peak_flops"),
        "peak_source": device.peak_source or None,
        "bandwidth_bytes_per_second": device.bandwidth,
        "link_bandwidth_bytes_per_second": device.link_bandwidth,
    }


def longest_first(row: TimeRow) -> float:
    """A sort key: measured times, or else predicted ones, or else floors."""
    return -(row.measured_seconds or row.predicted_seconds or row.floor_seconds or 0.0)


@once_per_object
def step_time(opened: XlaSubject) -> StepTime | None:
    """The time of a step; None if the dump has no complete HLO module."""
    cost = opened.step_cost
    if cost is None:
        return None
    record = opened.time_record
    seconds_of = record.seconds_of if record is not None else {}
    prediction = opened.study.prediction_with_mfu
    predicted = {item.name: item for item in prediction.kernels} if prediction is not None else {}
    times = named(prediction, *(f"{name}seconds" for name in _PREDICTED), prefix="predicted_")
    return row_of(
        StepTime,
        cost,
        **times,
        bound_seconds=cost.bound_seconds(),
        speeds=opened.device,
        measured=record,
        prediction=prediction,
        kernels=tuple(
            row_of(
                TimeRow,
                kernel,
                source=str(kernel.source) if kernel.source is not None else None,
                flops=kernel.total_flops,
                measured_seconds=seconds_of.get(kernel.name),
                predicted_seconds=item.seconds if item is not None else None,
                basis=item.launch.basis if item is not None else None,
                bound="launches" if item is not None and item.is_launch_bound else kernel.bound,
            )
            for kernel in cost.kernels
            for item in [predicted.get(kernel.name)]
        ),
    )


_PREDICTED = ("step_", "at_least_", "kernel_", "low_", "high_", "latency_", "span_")
