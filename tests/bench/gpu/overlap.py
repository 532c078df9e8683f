"""Divides a device's time: gemms, other kernels, collectives, and how much of these is hidden.

Imports no framework: each side passes the kernels that its profiler recorded.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|xmma|_dot", re.IGNORECASE)
_COLLECTIVE = re.compile(r"nccl", re.IGNORECASE)

Span = tuple[float, float]


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy on one device; start and end are in seconds of the same clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Division:
    """Seconds of one step on one device.

    Attributes:
      gemm_seconds: a gemm runs.
      compute_seconds: a kernel other than a collective runs, including gemms.
      collective_seconds: a collective runs; this includes its waiting for other devices.
      exposed_seconds: a collective and no other kernel runs.
      idle_seconds: no kernel runs, between the first kernel and the last.
    """

    gemm_seconds: float
    compute_seconds: float
    collective_seconds: float
    exposed_seconds: float
    idle_seconds: float


def divide(kernels: Iterable[Kernel], steps: int) -> Division | None:
    """The mean division of a step, from the kernels of `steps` steps; None without kernels."""
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
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
