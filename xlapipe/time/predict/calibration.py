"""Calibrations: how long kernels take on one GPU. Text files, one JSON value per line.

The first line states the device and where the figures are from, the second the constants of the
formulas, and each further line the timed kernels of one kind, in columns.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from xlapipe.devices.targets.catalogue import row_of_device
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import Refusal, parse_json, read_packed
from xlapipe.files.typed_data import Count, Line, MisfitError, Typed, typed
from xlapipe.files.visible_text import visible_line
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.time.predict.fitted import Fitted

if TYPE_CHECKING:
    from xlapipe.time.predict.index_values import Array

SCHEMA_VERSION = 2
_VERSION_KEY = "xlapipe_calibration"
_FIX = "fix: calibrate again with `xlapipe device calibrate --target attached --out FILE`"
# GPUs per collective in calibrations that do not state their number.
_GPUS = 2
_MAX_BYTES = 16 * 1024 * 1024
_Stated: TypeAlias = Annotated[Line, Meta(min_length=1)]
# Coordinates are logarithms and shares. The squares of larger numbers may have no float.
_Coordinate: TypeAlias = Annotated[float, Meta(ge=-1e6, le=1e6)]
# Plausible ranges: seconds of an overhead; a rate of any processor; bytes of any cache.
_Overhead: TypeAlias = Annotated[float, Meta(gt=0, le=0.1)]
_Rate: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e20)]
_CacheBytes: TypeAlias = Annotated[float, Meta(ge=1, le=1e12)]
# Attributes of `TimedKind` beside its kind and points.
_COLUMNS = ("graph", "us", "ratio", "launches", "program", "device")
# Constants that are times of the host.
_HOST_SECONDS = (
    *("kernel_interval_seconds", "loop_interval_seconds", "graph_interval_seconds"),
    *("sync_seconds", "call_seconds", "leaf_seconds", "wake_seconds"),
)
# The catalogue's names of the GPUs whose calibrations are in this package.
_SHIPPED = {"h200": "h200.jsonl.gz", "h100_sxm": "h100_sxm.jsonl.gz"}


class CalibrationError(XlapipeError):
    """A calibration file is damaged, or is not one."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of the formulas; seconds, bytes per second and operations per second.

    Attributes:
      launch_seconds: of an empty kernel.
      cold_seconds: additional, if it reads data that is not in the L2 cache.
      bandwidth, l2_bandwidth: of device memory and of the L2 cache, as kernels achieve them.
      l2_bytes: that the L2 cache holds from one kernel to the next.
      operation_rate: of simple float32 operations on elements.
      thread_rate: threads per second that start and end.
      peak_flops: of matrix products by type, as the datasheet states them.
      link_bandwidth: in each direction to other GPUs.
      kernel_interval_seconds, loop_interval_seconds, graph_interval_seconds: between two launches
        by the host, while the profiler runs: of a kernel, of one in a loop, of a command buffer.
      sync_seconds: of a copy to the host that decides whether a loop goes on.
      gap_seconds, graph_gap_seconds: between two kernels outside and inside a command buffer.
      call_seconds: of a call on the host that runs nothing, without the profiler, and for each
        leaf of its arguments and results `leaf_seconds` more; `wake_seconds` until the host goes on
        if it slept, as it does in calls that are longer than `Fitted.asleep_seconds`.
      fitted: constants that no probe isolates.
    """

    launch_seconds: _Overhead
    cold_seconds: _Overhead
    bandwidth: _Rate
    l2_bandwidth: _Rate
    l2_bytes: _CacheBytes
    operation_rate: _Rate
    thread_rate: _Rate
    peak_flops: Mapping[Line, _Rate]
    link_bandwidth: _Rate
    kernel_interval_seconds: _Overhead
    loop_interval_seconds: _Overhead
    graph_interval_seconds: _Overhead
    sync_seconds: _Overhead
    gap_seconds: _Overhead
    graph_gap_seconds: _Overhead
    call_seconds: _Overhead
    leaf_seconds: _Overhead
    wake_seconds: _Overhead
    fitted: Fitted

    @property
    def unprofiled(self) -> "Constants":
        """With the times that the host takes without the profiler."""
        shares = self.fitted.unprofiled
        return replace(self, **{name: getattr(self, name) * by for name, by in shares.items()})


@dataclass(frozen=True, eq=False)
class TimedKind:
    """The timed kernels of a kind: a value of each in each column.

    Attributes:
      kind, at: see `KernelWork` and its `point`.
      graph: whether a command buffer launched it.
      us: its time in microseconds.
      ratio: its time as a multiple of the formula's.
      launches: number of kernels that the library ran for it.
      program: that ran it.
      device: that ran it, empty for the calibration's own: another one of its generation, which
        ran kernels that this one did not. Without values, all are its own.
    """

    kind: _Stated
    at: Sequence[tuple[_Coordinate, ...]] = ()
    graph: Sequence[bool] = ()
    us: Sequence[Annotated[float, Meta(gt=0, le=86_400e6)]] = ()
    ratio: Sequence[Annotated[float, Meta(gt=0, le=1e9)]] = ()
    launches: Sequence[Annotated[float, Meta(gt=0, le=1e9)]] = ()
    program: Sequence[Line] = ()
    device: Sequence[Line] = ()

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a kernel's point; 0 without kernels."""
        return len(self.at[0]) if self.at else 0

    @cached_property
    def places(self) -> "Array":
        """Coordinates, and whether a command buffer launched it, float64[kernels, coordinates]."""
        # numpy takes longer to start than most commands that predict no time.
        import numpy as np

        return np.column_stack([np.array(self.at, np.float64), self.graph])

    def to_text(self) -> str:
        """The line of a file."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps({name: values for name, values in columns.items() if values})


@dataclass(frozen=True)
class Calibration:
    """A calibration of one GPU.

    Attributes:
      provenance: device, driver, date, versions and command.
      lines: of the timed kernels, by kind: all together take longer to parse than most predictions.
      scaled_from: name of the device that was timed, if this one was not.
    """

    provenance: Mapping[str, Any]
    constants: Constants
    lines: Mapping[str, str]
    scaled_from: str | None = None

    @property
    def device(self) -> str:
        """The device's name, e.g. `NVIDIA H200`."""
        return str(self.provenance["device"])

    @property
    def collective_gpus(self) -> int:
        """GPUs that each timed collective was among."""
        return int(self.provenance.get("gpus", _GPUS))

    @property
    def times_collectives(self) -> bool:
        """Whether collectives were timed on this GPU itself, not on another of its generation."""
        timed = [self.of_kind(kind) for kind in COLLECTIVES]
        return self.scaled_from is None and any(kind.at and not kind.device for kind in timed)

    def of_kind(self, kind: str) -> TimedKind:
        """The timed kernels of a kind, if any."""
        if kind not in self._kinds:
            row = json.loads(self.lines.get(kind, "{}"))
            self._kinds[kind] = TimedKind(**{"kind": kind, **row})
        return self._kinds[kind]

    @cached_property
    def _kinds(self) -> dict[str, TimedKind]:
        return {}

    def with_host(self, share: float) -> "Calibration":
        """The calibration with a host that takes this share of the time for all that it does."""
        times = {name: getattr(self.constants, name) * share for name in _HOST_SECONDS}
        return replace(self, constants=replace(self.constants, **times))

    def to_text(self) -> str:
        """The content of the file."""
        header = {_VERSION_KEY: SCHEMA_VERSION, **self.provenance}
        constants = {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in asdict(self.constants).items()
        }
        lines = (json.dumps(header), json.dumps({"constants": constants}), *self.lines.values())
        return "".join(f"{line}\n" for line in lines)


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file, also one that gzip or xz packed.

    Raises:
      CalibrationError: it cannot be read, or a line is not what it must be.
    """
    refusal = Refusal(CalibrationError, _FIX.removeprefix("fix: "))
    content = read_packed(path, limit_bytes=_MAX_BYTES, refusal=refusal)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CalibrationError(f"calibration {path}: cannot be read as text: {error}") from None
    return parse_calibration(text, where=str(path))


def parse_calibration(text: str, *, where: str) -> Calibration:
    """The calibration in the content of a file.

    Raises:
      CalibrationError: a line is not what it must be.
    """
    lines = text.splitlines()
    if len(lines) < 3:
        raise _error(where, len(lines), "expected a header, constants and timed kernels")
    header = _typed(where, 1, lines[0], _Header)
    constants = _constants(_typed(where, 2, lines[1], _ConstantsLine), lines[1])
    row = row_of_device(header.device)
    missing = sorted((row.peak_flops if row is not None else {}).keys() - constants.peak_flops)
    if missing:
        raise _error(
            where,
            2,
            f"constants.peak_flops: expected those of {header.device}, found none of "
            f"{', '.join(missing)}",
        )
    kinds: dict[str, str] = {}
    for number, line in enumerate(lines[2:], 3):
        timed = _typed(where, number, line, TimedKind)
        if len(lengths := {len(point) for point in timed.at}) > 1:
            message = f"at: expected equally many numbers of each kernel, found {sorted(lengths)}"
            raise _error(where, number, message)
        for name in _COLUMNS:
            values = getattr(timed, name)
            if len(values) != len(timed.at) and (values or name != "device"):
                message = f"{name}: expected {len(timed.at)} values as of at, found {len(values)}"
                raise _error(where, number, message)
        kinds[timed.kind] = line
    provenance = parse_json(lines[0])
    del provenance[_VERSION_KEY]
    return Calibration(provenance, constants, kinds)


@dataclass(frozen=True)
class _Header:
    xlapipe_calibration: Literal[2]
    device: _Stated
    driver: _Stated
    date: _Stated
    versions: Annotated[Mapping[Line, Line], Meta(min_length=1)]
    command: _Stated
    gpus: Count = _GPUS


@dataclass(frozen=True)
class _ConstantsLine:
    constants: Constants


def _constants(line: _ConstantsLine, text: str) -> Constants:
    """The constants of a line, not converted, so that they are written back as they were read."""
    figures = parse_json(text)["constants"]
    own = {item.name: figures[item.name] for item in fields(Constants)}
    return Constants(**{**own, "fitted": line.constants.fitted})


def _typed(where: str, number: int, line: str, kind: type[Typed]) -> Typed:
    try:
        return typed(kind, parse_json(line))
    except MisfitError as error:
        raise _error(where, number, visible_line(str(error))) from None
    except ValueError as error:
        message = f"expected a JSON object, found {line[:60]!r} ({visible_line(str(error))})"
        raise _error(where, number, message) from None


def _error(where: str, line: int, message: str) -> CalibrationError:
    return CalibrationError(f"calibration {where}, line {line}: {message}; {_FIX}")


@cache
def shipped_calibration(target: str) -> Calibration | None:
    """The calibration of a GPU of the catalogue that is in this package; None if there is none."""
    if target not in _SHIPPED:
        return None
    provenance, _, *lines = _shipped_lines(target)
    return Calibration(
        {name: value for name, value in json.loads(provenance).items() if name != _VERSION_KEY},
        _constants_of(target),
        {line.split('"', 4)[3]: line for line in lines},
    )


@cache
def fitted_to(target: str) -> Fitted:
    """The constants that were fitted to the timed kernels of a GPU in this package."""
    return _constants_of(target).fitted


def _constants_of(target: str) -> Constants:
    text = _shipped_lines(target)[1]
    return _constants(typed(_ConstantsLine, parse_json(text)), text)


@cache
def _shipped_lines(target: str) -> Sequence[str]:
    """Header, constants and timed kernels."""
    # A test checks each line, which takes longer than most predictions.
    file = resources.files("xlapipe.time.predict").joinpath("calibrations", _SHIPPED[target])
    return gzip.decompress(file.read_bytes()).decode().splitlines()
