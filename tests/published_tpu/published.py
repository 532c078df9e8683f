"""The published figures, and how near estimates are to them.

Source: AI-Hypercomputer/tpu-recipes@c8cfe2f6, the README of each recipe under `training/`; of v5p,
AI-Hypercomputer/maxtext@e591f30c, `docs/reference/models/tiering.md`, which states tokens per
second and device, and its MFU. No constant of an estimate was chosen from these rows.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

# Operations per second of a device, as published; of tpu7x, half a chip.
_V5P, _V6E, _TPU7X, _TPU7X_FLOAT8 = 459.0, 918.0, 1153.5, 2307.0


class Row(NamedTuple):
    """A published step.

    Attributes:
      teraflops: per second and device, of the model.
      peak: of the device.
    """

    target: str
    topology: str
    seconds: float
    teraflops: float
    peak: float


def _tpu7x(topology: str, seconds: float, of_a_chip: float, peak: float = _TPU7X) -> Row:
    return Row("tpu7x", topology, seconds, of_a_chip / 2, peak)


def _v5p(topology: str, tokens: int, tokens_per_second: float, mfu: float) -> Row:
    return Row("v5p", topology, tokens / tokens_per_second, mfu * _V5P, _V5P)


ROWS = {
    "llama3.1-8b-v6e-8": Row("v6e", "2x4", 3.443, 413.433, _V6E),
    "mistral-7b-v6e-8": Row("v6e", "2x4", 6.320, 431.981, _V6E),
    "llama3.1-70b-v6e-64": Row("v6e", "8x8", 18.688, 422.091, _V6E),
    "llama2-70b-v6e-256": Row("v6e", "16x16", 9.052, 402.274, _V6E),
    "gpt3-175b-v6e-256": Row("v6e", "16x16", 17.182, 384.891, _V6E),
    "mixtral-8x7b-v6e-256": Row("v6e", "16x16", 13.484, 302.311, _V6E),
    "llama3.1-70b-tpu7x-64": _tpu7x("4x4x4", 12.20, 1207.05),
    "llama3.1-70b-fp8-tpu7x-64": _tpu7x("4x4x4", 7.93, 1854.19, _TPU7X_FLOAT8),
    "llama3.1-70b-128k-tpu7x-256": _tpu7x("4x8x8", 34.02, 897.94),
    "llama3.1-405b-tpu7x-256": _tpu7x("4x8x8", 98.34, 1261.40),
    "qwen3-235b-tpu7x-256": _tpu7x("4x8x8", 30.87, 629.79),
    "mixtral-8x7b-v5p-128": _v5p("4x4x8", 36 * 4096, 2909, 0.5256),
    "llama2-70b-v5p-256": _v5p("4x8x8", 4 * 4096, 692, 0.654),
    "gpt-oss-120b-tpu7x-64": _tpu7x("4x4x4", 17.10, 330.25),
}


@dataclass(frozen=True)
class Errors:
    """Natural logarithms of estimated over published times."""

    logs: Sequence[float]

    @property
    def median(self) -> float:
        """Half of the rows are nearer."""
        return median(exp(abs(value)) - 1 for value in self.logs)

    @property
    def worst(self) -> float:
        """No row is further off."""
        return max(exp(abs(value)) - 1 for value in self.logs)

    @property
    def rms(self) -> float:
        """Root of the mean square."""
        return float((sum(value * value for value in self.logs) / len(self.logs)) ** 0.5)

    @property
    def text(self) -> str:
        """The three."""
        return f"median {self.median:.1%}, worst {self.worst:.0%}, rms in log {self.rms:.3f}"


def judged() -> Iterator[tuple[str, Row, dict[str, Any]]]:
    """The rows that have a record."""
    records = json.loads(Path(__file__).with_name("records.json").read_text())
    return ((name, row, records[name]) for name, row in ROWS.items() if name in records)


def errors() -> tuple[Errors, Errors]:
    """Those of the estimates, and those of the one MFU that is best for all these rows."""
    rows = list(judged())
    own = [log(record["estimated"] / row.seconds) for _, row, record in rows]
    used = [log(row.teraflops / row.peak) for _, row, _ in rows]
    mean = sum(used) / len(used)
    return Errors(own), Errors([value - mean for value in used])
