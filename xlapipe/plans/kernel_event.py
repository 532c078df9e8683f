"""Kernels and calls in a GPU profile."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A kernel or copy in a profile.

    Attributes:
      hlo_op: the instruction or command buffer that launched it; None if the profile has none.
    """

    name: str
    hlo_op: str | None
    start_ns: float
    duration_ns: float

    @property
    def end_ns(self) -> float:
        """When it ended."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class CallInterval:
    """A call of the program on the host, until its outputs are ready; same clock as the kernels."""

    start_ns: float
    end_ns: float
