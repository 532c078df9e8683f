"""The predicted time of a step, with that of each kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xlapipe.plans.short_repr import short_repr
from xlapipe.time.collectives.exchange import DATASHEET, TABLE
from xlapipe.time.predict.interval import Share
from xlapipe.time.predict.kernel_time import (
    ASSUMED,
    CALIBRATED,
    LAUNCH,
    PUBLISHED,
    SCALED,
    KernelTime,
)
from xlapipe.time.predict.work import KernelWork

BASES = (CALIBRATED, TABLE, PUBLISHED, SCALED, DATASHEET, ASSUMED)
"""What times rest on, the best first."""
COMPUTE, ASYNCHRONOUS = "compute", "asynchronous"
"""Streams: one kernel after the other, and those that overlap them until their done instruction."""


class TimelineEvent(NamedTuple):
    """A kernel that runs, or the further trips of a loop.

    A loop has its first trip and one that represents the others as kernels, and the rest as one
    event.

    Attributes:
      name: of the kernel; empty of further trips.
      start_seconds: since the start of the first kernel.
      seconds: until it ends.
      stream: `compute` or `asynchronous`.
      launches: of the kernel in the whole step, in this place; 0 of further trips.
      time: of one launch; None of further trips.
      trips: further trips; 0 of a kernel.
    """

    name: str
    start_seconds: float
    seconds: float
    stream: str
    launches: int
    time: KernelTime | None
    trips: int = 0

    def __repr__(self) -> str:
        return short_repr(self)


@dataclass(frozen=True)
class PredictedKernel:
    """All launches of one kernel in a step.

    Attributes:
      seconds: of all launches; not less than the floor.
      launch: time of the longest launch, for an explanation.
      at_floor: whether the prediction was below the floor, and is the floor.
    """

    __repr__ = short_repr

    name: str
    launches: int
    seconds: float
    launch: KernelTime
    work: KernelWork
    at_floor: bool

    @property
    def is_launch_bound(self) -> bool:
        """Whether a launch takes longer than what the kernel does."""
        first, *others = self.launch.parts or (None,)
        launch = first.seconds if first is not None and first.reason == LAUNCH else 0.0
        return launch > sum(part.seconds for part in others if part is not None)

    @property
    def share(self) -> Share:
        """What the error of the step's time depends on."""
        return self.work.kind, self.launch.basis, self.seconds, self.launch.spread


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time of a step, or a lower bound of it.

    Attributes:
      kernels: each kernel, with the time of its launches that are counted.
      step_seconds: of a step in a loop that calls it back to back: the longer of what the device
        and the host need for it; None if only a lower bound is known, which is not a prediction: it
        is neither ranked nor compared.
      at_least_seconds: the lower bound, where `step_seconds` is None; else None.
      low_seconds, high_seconds: an interval that holds the truth in nine of ten programs; None of a
        lower bound.
      latency_seconds: of one call until its results are awaited; None of a lower bound, and of a
        TPU, whose host was not timed.
      span_seconds: device time from the first kernel's start to the last one's end, as a profiler
        shows it, which slows the host down.
      device: GPU of the prediction; scaled_from: the GPU that was timed, if another.
      assumptions: what is unknown, in words.
      uncounted: assumptions because of which the step may take many times as long.
      network: between the GPUs, in words; empty for a step without collectives.
      mfu, mfu_text: model FLOPs utilisation, where a caller computed it; see `Utilisation`.
      timeline: what runs when, in the order of launches.
      spreads: of the share of the time of each kind of kernel; for `probability_faster`.
      launch_bound: that launches take most of the time, which, and remedies; else empty.
      is_estimate: whether no program was timed on such a device.
      exposed: of an estimate, seconds that the cores wait for each carrier of transfers.
      losses: of an estimate, what makes the step slow, by source line, and remedies.
    """

    __repr__ = short_repr

    kernels: tuple[PredictedKernel, ...]
    step_seconds: float | None
    at_least_seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    latency_seconds: float | None
    span_seconds: float
    device: str
    scaled_from: str | None
    assumptions: tuple[str, ...]
    uncounted: tuple[str, ...]
    network: str = ""
    mfu: float | None = None
    mfu_text: str = ""
    timeline: tuple[TimelineEvent, ...] = ()
    spreads: Mapping[str, float] = field(default_factory=dict)
    is_estimate: bool = False
    exposed: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    launch_bound: str = ""

    @property
    def verb(self) -> str:
        """What the time is: a TPU's is an estimate until somebody measures."""
        return "estimated" if self.is_estimate else "predicted"

    @property
    def interval_word(self) -> str:
        """What is known of the interval, in words."""
        if self.is_estimate:
            return "an estimate, not tried on a TPU"
        return "9 in 10" if self.scaled_from is None else "not tried on this GPU"

    @property
    def text(self) -> str:
        """The time, or its lower bound, in microseconds."""
        if self.step_seconds is None:
            return f"at least {(self.at_least_seconds or 0.0) * 1e6:,.1f} µs"
        return f"{self.step_seconds * 1e6:,.1f} µs"

    @property
    def network_name(self) -> str:
        """The network's name, and whether it is assumed."""
        name = self.network.partition(":")[0]
        return f"{name} (assumed)" if "(assumed" in self.network else name

    @property
    def kernel_seconds(self) -> float:
        """Sum over the kernels."""
        return sum(kernel.seconds for kernel in self.kernels)


def basis_of(prediction: Prediction) -> dict[str, float]:
    """Seconds of the kernels by basis, e.g. `calibrated`."""
    seconds = dict.fromkeys(BASES, 0.0)
    for kernel in prediction.kernels:
        seconds[kernel.launch.basis] += kernel.seconds
    return seconds
