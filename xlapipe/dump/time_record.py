"""The record of measured times of a plan's kernels: `time_record.json` in a dump's folder."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from xlapipe.devices.targets.catalogue import is_same_device
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal
from xlapipe.files.typed_data import Line, Seconds, Text, read_typed
from xlapipe.files.visible_text import visible_line
from xlapipe.files.writing import write_files
from xlapipe.time.profiles.joined_profile import MeasuredStep

# Each time is a median over several calls; the sum of medians is not the median of sums.
_MEDIANS_DIFFER = 1.25
_MAX_BYTES = 64 * 1024 * 1024
TIME_RECORD = "time_record.json"
_SCHEMA_VERSION = 1
_REFUSAL = Refusal(DumpError, "measure it again with `xlapipe run DIR --profile`")


@dataclass(frozen=True, kw_only=True)
class TimeRecord(MeasuredStep):
    """A profile joined with the plan, and where it is from; see `run_record`.

    Attributes:
      wall_seconds: seconds of a call without the profiler, the median over the profiled steps.
      profiled_wall_seconds: seconds of a call with it; the difference is the profiler's overhead.
    """

    wall_seconds: Seconds
    profiled_wall_seconds: Seconds
    device: Annotated[Line, Meta(min_length=1)]
    driver: Line | None = None
    versions: Mapping[Line, Line] | None = None
    command: Text | None = None
    date: Line | None = None

    @classmethod
    def of(cls, measured: MeasuredStep, **about: Any) -> "TimeRecord":
        """A profile with the other fields."""
        return cls(**vars(measured), **about)

    @property
    def seconds_of(self) -> Mapping[str, float]:
        """Seconds per step by name of the instruction."""
        return {kernel.name: kernel.seconds for kernel in self.kernels}

    def refuse_unless_of(self, device: str, *, where: Path) -> None:
        """Raises DumpError for a record of another device than `device`."""
        if not is_same_device(self.device, device):
            _REFUSAL.fail(
                f"{where / TIME_RECORD}: device: expected {device!r}, as in the manifest, found "
                f"{self.device!r}"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain data; largest kernels first."""
        data = {"schema_version": _SCHEMA_VERSION, **_rounded(asdict(self))}
        for name in ("kernels", "unmatched"):
            data[name] = sorted(map(_rounded, data[name]), key=lambda row: -row["seconds"])
        return data


def _check(measured: MeasuredStep) -> None:
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
    """Writes the record into a dump's folder; returns its path."""
    path = folder / TIME_RECORD
    write_files({path: (json.dumps(record.to_json(), indent=1) + "\n").encode()})
    return path


def read_time_record(folder: Path) -> TimeRecord | None:
    path = folder / TIME_RECORD
    if not os.path.lexists(path):
        return None
    record = read_typed(
        path,
        TimeRecord,
        limit_bytes=_MAX_BYTES,
        refusal=_REFUSAL,
        follow_links=False,
        schema_version=_SCHEMA_VERSION,
    )
    try:
        _check(record)
    except ValueError as error:
        _REFUSAL.fail(f"{path}: {visible_line(str(error))}")
    return record
