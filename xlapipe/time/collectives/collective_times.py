"""Measured collectives of GPUs of one host: `measured.jsonl`.

The first line states the source and the sizes in bytes, each further line the microseconds of one
GPU, kind and number of GPUs.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of one kind among a number of GPUs, by size."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def least(self) -> float:
        """Seconds of the smallest: latency alone."""
        return self.seconds[0]

    def at(self, size_bytes: float) -> float:
        """Seconds at a size, by the logarithms of the nearest; of larger ones at the last rate."""
        sizes, seconds = self.sizes, self.seconds
        if size_bytes >= sizes[-1]:
            return seconds[-1] * size_bytes / sizes[-1]
        if size_bytes <= sizes[0]:
            return seconds[0]
        after = next(number for number, size in enumerate(sizes) if size >= size_bytes)
        low, high = sizes[after - 1], sizes[after]
        share = math.log(size_bytes / low) / math.log(high / low)
        return _between(seconds[after - 1], seconds[after], share)


Curves: TypeAlias = Mapping[str, Mapping[str, Mapping[int, Curve]]]
"""By row of the GPU catalogue, kind, and number of GPUs."""


@cache
def measured_curves() -> Curves:
    text = (files("xlapipe.time.collectives") / "measured.jsonl").read_text(encoding="utf-8")
    header, *rows = map(json.loads, text.splitlines())
    curves: dict[str, dict[str, dict[int, Curve]]] = {}
    for row in rows:
        curve = Curve(tuple(map(float, header["bytes"])), tuple(us * 1e-6 for us in row["us"]))
        curves.setdefault(row["gpu"], {}).setdefault(row["kind"], {})[row["gpus"]] = curve
    return curves


def seconds_among(curves: Mapping[int, Curve], gpus: int, size_bytes: float) -> float:
    """Seconds among a number of GPUs, from the curves of other numbers.

    Between two numbers, by their logarithms. Beyond them, latency grows with the logarithm of the
    number, and the rest as what a GPU sends: (n - 1) / n.
    """
    near = _nearest(curves, gpus)
    if len(near) == 2:
        low, high = near
        share = math.log(gpus / low) / math.log(high / low)
        return _between(curves[low].at(size_bytes), curves[high].at(size_bytes), share)
    (number,) = near
    curve = curves[number]
    latency = curve.least * max(1.0, math.log2(gpus) / math.log2(number))
    sent = (gpus - 1) / gpus / ((number - 1) / number)
    return latency + (curve.at(size_bytes) - curve.least) * sent


def _nearest(numbers: Iterable[int], gpus: int) -> list[int]:
    """The number itself, the two around it, or the last one on its side."""
    ordered = sorted(numbers)
    if gpus in ordered or gpus > ordered[-1]:
        return [min(gpus, ordered[-1])]
    below = [number for number in ordered if number < gpus]
    return [*below[-1:], *(number for number in ordered if number > gpus)][:2]


def _between(low: float, high: float, share: float) -> float:
    return math.exp((1 - share) * math.log(low) + share * math.log(high))
