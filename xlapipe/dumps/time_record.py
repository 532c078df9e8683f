"""The record of measured times of a plan's kernels: `time_record.json` in a dump's folder."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, read_json
from xlapipe.files.visible_text import visible_line
from xlapipe.files.writing import write_files
from xlapipe.profiles.measured import Measured, MeasuredKernel

_MOST_SECONDS = 86_400
# Times are medians of several calls, each of its own; the sum of medians is not the median of sums.
_MEDIANS_DIFFER = 1.25
_MAX_BYTES = 64 * 1024 * 1024
TIME_RECORD = "time_record.json"
_SCHEMA_VERSION = 1
_FIX = "measure it again with `xlapipe run DIR --profile`"


@dataclass(frozen=True, kw_only=True)
class TimeRecord:
    """Measured times; seconds are per step, medians over the profiled steps.

    Attributes:
      wall_seconds: of a call without the profiler.
      profiled_wall_seconds: of a call with it; the difference is the profiler's overhead.
      measured: the profile, joined with the plan.
      provenance: device, driver, versions, command and date; see `run_record`.
    """

    wall_seconds: float
    profiled_wall_seconds: float
    measured: Measured
    provenance: Mapping[str, Any]

    @property
    def seconds_of(self) -> Mapping[str, float]:
        """Seconds per step by name of the instruction."""
        return {kernel.name: kernel.seconds for kernel in self.measured.kernels}

    def to_json(self) -> dict[str, Any]:
        """Plain data; largest kernels first."""
        data = asdict(self)
        measured = data.pop("measured")
        for name in ("kernels", "unmatched"):
            measured[name] = sorted(
                (_rounded(row) for row in measured[name]), key=lambda row: -row["seconds"]
            )
        return {
            "schema_version": _SCHEMA_VERSION,
            **data.pop("provenance"),
            **_rounded(data),
            **_rounded(measured),
        }

    @classmethod
    def from_json(cls, data: Any, *, where: str) -> "TimeRecord":
        """The record that `to_json` wrote.

        Raises:
          DumpError: the data has another form.
        """
        try:
            if data["schema_version"] != _SCHEMA_VERSION:
                raise ValueError(f"schema version {data['schema_version']!r}")
            measured = Measured(
                kernels=tuple(_kernel(row) for row in data["kernels"]),
                unmatched=tuple(_kernel(row) for row in data["unmatched"]),
                **{
                    name: _seconds(data, name)
                    for name in (
                        "by_name_seconds",
                        "by_order_seconds",
                        "span_seconds",
                        "busy_seconds",
                    )
                },
                steps=_count(data, "steps"),
                # Older records lack them.
                before_seconds=_seconds_or_none(data, "before_seconds"),
                after_seconds=_seconds_or_none(data, "after_seconds"),
            )
            _check(measured)
            provenance = ("device", "driver", "versions", "command", "date")
            return cls(
                wall_seconds=_seconds(data, "wall_seconds"),
                profiled_wall_seconds=_seconds(data, "profiled_wall_seconds"),
                measured=measured,
                provenance={name: data[name] for name in provenance if name in data},
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DumpError(
                f"{where}: expected a record of measured times, found: "
                f"{visible_line(str(error))}; fix: {_FIX}"
            ) from None


def _seconds(data: Mapping[str, Any], name: str) -> float:
    value = data[name]
    # NaN is not at least 0; a day is longer than any step.
    if type(value) not in (int, float) or not 0 <= value < _MOST_SECONDS:
        raise ValueError(f"{name} is {value!r:.40}, expected seconds from 0 to {_MOST_SECONDS:,}")
    return float(value)


def _seconds_or_none(data: Mapping[str, Any], name: str) -> float | None:
    return None if data.get(name) is None else _seconds(data, name)


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r:.40}, expected a number from 1 on")
    return value


def _kernel(row: Mapping[str, Any]) -> MeasuredKernel:
    if not isinstance(row["name"], str):
        raise TypeError(f"a kernel's name is {row['name']!r:.40}, expected text")
    return MeasuredKernel(row["name"], _count(row, "launches"), _seconds(row, "seconds"))


def _check(measured: Measured) -> None:
    """Refuses times that contradict each other: of one kernel twice, or longer than all kernels."""
    names = [kernel.name for kernel in measured.kernels]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"kernel {twice!r:.60} is listed twice")
    kernels = sum(kernel.seconds for kernel in (*measured.kernels, *measured.unmatched))
    joined = measured.by_name_seconds + measured.by_order_seconds
    if sum(kernel.seconds for kernel in measured.kernels) > joined * _MEDIANS_DIFFER + 1e-9:
        raise ValueError(f"the kernels take {kernels:.9f} s, more than the {joined:.9f} s joined")


def _rounded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds to the nanosecond's tenth, which is finer than the profiler measures."""
    return {
        key: round(value, 10) if isinstance(value, float) else value for key, value in data.items()
    }


def write_time_record(folder: Path, record: TimeRecord) -> Path:
    """Writes the record into a dump's folder; returns its path.

    Raises:
      XlapipeError: it cannot be written.
    """
    path = folder / TIME_RECORD
    write_files({path: (json.dumps(record.to_json(), indent=1) + "\n").encode()})
    return path


def read_time_record(folder: Path) -> TimeRecord | None:
    """The record in a dump's folder; None if there is none.

    Raises:
      DumpError: it is damaged.
    """
    path = folder / TIME_RECORD
    if not os.path.lexists(path):
        return None
    data = read_json(
        path, limit_bytes=_MAX_BYTES, refusal=Refusal(DumpError, _FIX), follow_links=False
    )
    return TimeRecord.from_json(data, where=str(path))
