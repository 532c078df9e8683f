"""Calibrations: how long kernels take on one GPU. Text files, one JSON value per line.

The first line states the device and where the figures are from, the second the constants of the
formulas, and each further line one kernel that was timed. A file has kernels of its own device
alone; kernels that other devices lack are marked `lent`, and are added when a calibration of one
of those is read.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from xlapipe.devices.targets.catalogue import row_of_device
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import Refusal, parse_json, read_packed
from xlapipe.files.typed_data import Count, Line, MisfitError, Typed, typed
from xlapipe.files.visible_text import visible_line
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.time.predict.fitted import Fitted, Similarity
from xlapipe.time.predict.kinds import features_of

if TYPE_CHECKING:
    from xlapipe.time.predict.index_values import Array

SCHEMA_VERSION = 1
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
# JSON keys of the attributes of `TimedKernel`, in the same order.
_KEYS = ("kind", "at", "graph", "us", "ratio", "launches", "program", "device")
_REQUIRED = itemgetter(*_KEYS[:-1])
# As `lines_of` writes a line: its kind, its point, and whether it is in a command buffer.
_LINE = re.compile(r'\{"kind": "([^"\\]+)", "at": (\[[^\]]*)\], "graph": (t?)')
_LENT = ', "lent": true}'
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


class TimedKernel(NamedTuple):
    """A kernel that was timed.

    Attributes:
      kind, point: see `KernelWork`.
      in_graph: whether a command buffer launched it.
      microseconds: its time.
      ratio: its time as a multiple of the formula's.
      launches: number of kernels that the library ran for it.
      program: that ran it.
      device: that ran it, if another one lends it: one of the same generation.
    """

    kind: str
    point: Sequence[float]
    in_graph: bool
    microseconds: float
    ratio: float
    launches: float
    program: str
    device: str = ""


@dataclass(frozen=True, eq=False)
class TimedKind:
    """All timed kernels of a kind.

    Attributes:
      lines: of the calibration. Of all of them, only coordinates are parsed: whole kernels take
        longer to parse than most predictions take.
    """

    kind: str
    lines: tuple[str, ...]
    similarity: Similarity
    scales: Sequence[float] = ()

    def kernels(self, numbers: Iterable[int]) -> tuple[TimedKernel, ...]:
        """The kernels of some lines."""
        return _kernels([self.lines[number] for number in numbers])

    @cached_property
    def coordinates(self) -> int:
        """Number of coordinates of a kernel's point; 0 without kernels."""
        return max((len(kernel.point) for kernel in _kernels(self.lines[:1])), default=0)

    def placed(self, points: Sequence[Sequence[float]]) -> "Array":
        """Scaled coordinates of kernels of this kind.

        Returns:
          Scaled coordinates, float64[kernels, coordinates].
        """
        # numpy takes longer to start than most commands that predict no time.
        import numpy as np

        places = np.array(points, np.float64)
        return places * self.scales if len(self.scales) == places.shape[1] else places

    @cached_property
    def places(self) -> "Array":
        """Scaled coordinates of the timed kernels, float64[kernels, coordinates]."""
        return self.placed(json.loads(f"[{','.join(map(_point_text, self.lines))}]"))


@dataclass(frozen=True)
class Calibration:
    """A calibration of one GPU.

    Attributes:
      provenance: device, driver, date, versions and command.
      lines: of the file, one for each timed kernel.
      borrowed: lines of kernels that other GPUs of its generation lend, each with that GPU's name.
      scaled_from: name of the device that was timed, if this one was not.
    """

    provenance: Mapping[str, Any]
    constants: Constants
    lines: tuple[str, ...]
    borrowed: tuple[str, ...] = ()
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
        own = (self.of_kind(kind).kernels((0,)) for kind in COLLECTIVES if self.of_kind(kind).lines)
        return self.scaled_from is None and any(not kernel.device for (kernel,) in own)

    @property
    def kernels(self) -> tuple[TimedKernel, ...]:
        """All timed kernels."""
        return _kernels((*self.lines, *self.borrowed))

    def of_kind(self, kind: str) -> TimedKind:
        """The timed kernels of a kind, if any."""
        if kind not in self._kinds:
            lines, fitted = self._lines_of_kinds.get(kind, ()), self.constants.fitted
            self._kinds[kind] = TimedKind(
                kind, tuple(lines), fitted.similarity(kind), fitted.scales.get(kind, ())
            )
        return self._kinds[kind]

    @cached_property
    def _kinds(self) -> dict[str, TimedKind]:
        return {}

    @cached_property
    def _lines_of_kinds(self) -> Mapping[str, Sequence[str]]:
        lines_of_kinds: dict[str, list[str]] = {}
        for line in (*self.lines, *self.borrowed):
            match = _LINE.match(line)
            kind = match[1] if match else json.loads(line)["kind"]
            lines_of_kinds.setdefault(kind, []).append(line)
        return lines_of_kinds

    def scaled(
        self,
        device: str,
        *,
        bandwidth: float,
        peak_flops: float,
        vector: float,
        clocks: float,
        l2_bytes: float,
    ) -> "Calibration":
        """The calibration of another GPU, from the ratios of the two datasheets."""
        own = self.constants
        constants = replace(
            own,
            bandwidth=own.bandwidth * bandwidth,
            l2_bandwidth=own.l2_bandwidth * clocks,
            l2_bytes=own.l2_bytes * l2_bytes,
            operation_rate=own.operation_rate * vector,
            thread_rate=own.thread_rate * clocks,
            peak_flops={name: rate * peak_flops for name, rate in own.peak_flops.items()},
            fitted=replace(
                own.fitted,
                partial_sector_rate=own.fitted.partial_sector_rate * clocks,
                line_operations=own.fitted.line_operations * vector / clocks,
            ),
        )
        provenance = {**self.provenance, "device": device}
        return replace(self, provenance=provenance, constants=constants, scaled_from=self.device)

    def with_host(self, share: float) -> "Calibration":
        """The calibration with a host that takes this share of the time for all that it does."""
        times = {name: getattr(self.constants, name) * share for name in _HOST_SECONDS}
        return replace(self, constants=replace(self.constants, **times))

    def to_text(self) -> str:
        """The content of the file."""
        header = {_VERSION_KEY: SCHEMA_VERSION, **self.provenance}
        constants = {
            name: _rounded(value) if isinstance(value, float) else value
            for name, value in asdict(self.constants).items()
        }
        lines = (json.dumps(header), json.dumps({"constants": constants}), *self.lines)
        return "".join(f"{line}\n" for line in lines)


def lines_of(kernels: Iterable[TimedKernel]) -> Iterator[str]:
    """A line of a calibration's file for each timed kernel."""
    for kernel in kernels:
        rounded = kernel._replace(
            point=[round(number, 2) for number in kernel.point],
            microseconds=round(kernel.microseconds, 2),
            ratio=round(kernel.ratio, 3),
            launches=round(kernel.launches, 2),
        )
        pairs = zip(_KEYS, rounded, strict=True)
        yield json.dumps({key: value for key, value in pairs if value != ""})


def _kernels(lines: Iterable[str]) -> tuple[TimedKernel, ...]:
    rows = json.loads(f"[{','.join(lines)}]")
    return tuple([TimedKernel._make((*_REQUIRED(row), row.get("device", ""))) for row in rows])


def _point_text(line: str) -> str:
    """JSON of a timed kernel's coordinates."""
    match = _LINE.match(line)
    if match is not None:
        return f"{match[2]}, {1 if match[3] else 0}]"
    row = json.loads(line)
    return json.dumps([*row["at"], row["graph"]])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


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
    lengths: dict[str, int] = {}
    for number, line in enumerate(lines[2:], 3):
        kernel = _typed(where, number, line, _KernelLine)
        if kernel.device not in ("", header.device):
            device = visible_line(repr(kernel.device)[:60])
            raise _error(where, number, f"device: expected {header.device}'s alone, found {device}")
        names = features_of(kernel.kind)
        expected = lengths.setdefault(kernel.kind, len(names or kernel.at))
        if len(kernel.at) != expected:
            why = f"({', '.join(names)})" if names else "as of the others"
            raise _error(
                where,
                number,
                f"at: expected {expected} numbers of a kernel {kernel.kind!r:.60} {why}, "
                f"found {len(kernel.at)}",
            )
    provenance = parse_json(lines[0])
    del provenance[_VERSION_KEY]
    return Calibration(provenance, constants, tuple(lines[2:]))


@dataclass(frozen=True)
class _Header:
    xlapipe_calibration: Literal[1]
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


@dataclass(frozen=True)
class _KernelLine:
    kind: _Stated
    at: tuple[_Coordinate, ...]
    graph: bool
    us: Annotated[float, Meta(gt=0, le=86_400e6)]
    ratio: Annotated[float, Meta(gt=0, le=1e9)]
    launches: Annotated[float, Meta(gt=0, le=1e9)]
    program: Line
    lent: bool = False
    device: Line = ""


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
    """The calibration of a GPU of the catalogue that is in this package; None if there is none.

    It has the kernels that this GPU ran, and those that the others lend.
    """
    if target not in _SHIPPED:
        return None
    provenance, _, *lines = _shipped_lines(target)
    borrowed = (line for other in _SHIPPED if other != target for line in _lent_by(other))
    return Calibration(
        {name: value for name, value in json.loads(provenance).items() if name != _VERSION_KEY},
        _constants_of(target),
        tuple(lines),
        tuple(borrowed),
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
    return _shipped_bytes(target).decode().splitlines()


@cache
def _shipped_bytes(target: str) -> bytes:
    file = resources.files("xlapipe.time.predict").joinpath("calibrations", _SHIPPED[target])
    return gzip.decompress(file.read_bytes())


def _lent_by(target: str) -> Iterator[str]:
    """The kernels that a GPU lends to others, the last ones of its file, with its name."""
    content = _shipped_bytes(target)
    name = json.loads(content[: content.index(b"\n")])["device"]
    start = content.rindex(b"\n", 0, content.index(_LENT.encode())) + 1
    device = f', "device": {json.dumps(name)}}}'
    return (line.removesuffix(_LENT) + device for line in content[start:].decode().splitlines())
