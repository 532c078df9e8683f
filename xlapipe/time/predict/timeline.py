"""What runs when in the predicted step: kernels by stream, and the further trips of loops."""

from typing import NamedTuple

from xlapipe.plans.short_repr import short_repr
from xlapipe.time.predict.kernel_time import KernelTime

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
