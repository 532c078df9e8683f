"""How a device's time divides: gemms, other kernels, collectives, and which of these are hidden.

Imports no framework: both sides give the kernels that their profilers saw.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|xmma|_dot", re.IGNORECASE)
_COLLECTIVE = re.compile(r"nccl", re.IGNORECASE)

Span = tuple[float, float]


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy on one device, from start to end in seconds of one clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Division:
    """Seconds of one step on one device.

    Attributes:
      gemm_seconds: some gemm runs.
      compute_seconds: some kernel that is no collective runs, gemms among them.
      collective_seconds: some collective runs; it may wait for another device meanwhile.
      exposed_seconds: a collective runs and nothing else.
      idle_seconds: nothing runs, between the first kernel and the last.
    """

    gemm_seconds: float
    compute_seconds: float
    collective_seconds: float
    exposed_seconds: float
    idle_seconds: float


def division(kernels: Iterable[Kernel], steps: int) -> Division | None:
    """Of one of `steps` steps, the kernels of all of which are given; None where there are none."""
    kernels = list(kernels)
    if not kernels:
        return None
    collective = _union(k for k in kernels if _COLLECTIVE.search(k.name))
    compute = _union(k for k in kernels if not _COLLECTIVE.search(k.name))
    gemm = _union(k for k in kernels if _GEMM.search(k.name) and not _COLLECTIVE.search(k.name))
    busy = _merged([*collective, *compute])
    whole = max(k.end for k in kernels) - min(k.start for k in kernels)
    return Division(
        gemm_seconds=_length(gemm) / steps,
        compute_seconds=_length(compute) / steps,
        collective_seconds=_length(collective) / steps,
        exposed_seconds=(_length(busy) - _length(compute)) / steps,
        idle_seconds=(whole - _length(busy)) / steps,
    )


def _union(kernels: Iterable[Kernel]) -> list[Span]:
    return _merged([(kernel.start, kernel.end) for kernel in kernels])


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Disjoint spans that cover the same time."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
