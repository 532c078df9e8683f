"""Raw records: programs that were timed on a GPU, as XLA compiled them, with their times.

A record is one packed archive. `times.json` states the device, versions and command, and for each
program the measured seconds of its kernels, span and call. NAME/ has the files of XLA that a plan
is read from. Features, and a calibration's ratios, are derived from it, and never in it.

Modules are stored in a form in which equal kernels have equal bytes, so that an archive has each
once. Lines of source and the simulation of the heap are left out. Instructions are numbered by
position: they have no ids, operands are distances, and the bodies of fusions have no names.
"""

import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, count, pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

from google.protobuf.message import DecodeError
from msgspec import Meta

from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.hlo_proto import (
    BufferAllocationProto,
    BufferAssignmentProto,
    HloProto,
)
from xlapipe.errors import DumpError, XlapipeError
from xlapipe.files.contents import Refusal, parse_json, read_packed
from xlapipe.files.typed_data import Line, typed
from xlapipe.files.visible_text import visible_line
from xlapipe.plans.kernel_code import KernelCode
from xlapipe.plans.kernel_event import CallInterval, KernelEvent
from xlapipe.plans.plan import Plan
from xlapipe.time.profiles.joined_profile import MeasuredKernel, join_profile

KEPT_FILES = re.compile(r"(gpu_after_optimizations\.hlo\.pb|thunk_sequence\.txt)$")
"""Files of XLA that a plan is read from."""
_KERNEL_CODES, _TIMES, _MODULE = "kernel_codes.json", "times.json", ".hlo.pb"
# What parsers of archives, protos and JSON raise.
_DAMAGE: tuple[type[Exception], ...] = (ArithmeticError, AttributeError, EOFError, LookupError)
_DAMAGE += (RecursionError, TypeError, ValueError, tarfile.TarError, DecodeError)
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]


class RecordError(XlapipeError):
    """A record is damaged, or is not one."""


_REFUSAL = Refusal(RecordError, "give what `xlapipe device calibrate --target attached` wrote")


@dataclass(frozen=True)
class ProgramTimes:
    """Measured seconds of a program, without the profiler for the call.

    Attributes:
      kernels: launches and seconds of each instruction's kernels.
      kernel_seconds: of all kernels, also of those that were joined with no instruction.
      step_seconds: of a call in a loop of calls back to back; None if that was not timed.
      trips: of each loop whose number the plan does not state; None if unknown.
    """

    span_seconds: _Seconds
    kernel_seconds: _Seconds
    wall_seconds: _Seconds
    kernels: Mapping[Line, tuple[int, _Seconds]]
    trips: int | None = None
    step_seconds: _Seconds | None = None

    @property
    def measured(self) -> tuple[MeasuredKernel, ...]:
        """The kernels, with their names."""
        return tuple(MeasuredKernel(name, *times) for name, times in self.kernels.items())


@dataclass(frozen=True)
class RecordAbout:
    """Where a record is from.

    Attributes:
      gpus: that ran each program together, of one host.
      target_config: GpuTargetConfigProto of the device, as text; empty if it is the catalogue's.
    """

    device: Line
    driver: Line
    date: Line
    versions: Mapping[Line, Line]
    command: Line
    gpus: int = 1
    target_config: str = ""


@dataclass(frozen=True, kw_only=True)
class _Times(RecordAbout):
    programs: Mapping[Line, ProgramTimes]


@dataclass(frozen=True)
class TimedCalls:
    """What the profiler saw of some calls of one program.

    Attributes:
      wall_seconds: seconds of calls without the profiler.
    """

    events: tuple[KernelEvent, ...]
    calls: tuple[CallInterval, ...]
    wall_seconds: tuple[float, ...]


@dataclass(frozen=True)
class ProgramProfile:
    """A program as it ran."""

    name: str
    plan: Plan
    times: ProgramTimes


def read_record(path: Path, only: str = "") -> tuple[RecordAbout, Iterator[ProgramProfile]]:
    """Where a record is from, and its programs, each read when it is needed."""
    with damage_is_named(path):
        files = members(read_packed(path, refusal=_REFUSAL))
        times = typed(_Times, parse_json(files[_TIMES]))
    programs = {name: program for name, program in times.programs.items() if name == (only or name)}
    return times, _profiles(path, files, programs, times.gpus)


@contextmanager
def damage_is_named(path: Path, program: str = "") -> Iterator[None]:
    """Raises RecordError for what reading a damaged or forged record raises."""
    try:
        yield
    except _DAMAGE as error:
        _REFUSAL.fail(f"record {path}: {type(error).__name__}: {visible_line(str(error)):.300}")
    except DumpError as error:
        text = str(error).partition("; fix: ")[0]
        _REFUSAL.fail(f"record {path}: {visible_line(f'{program}: {text}'):.300}")


def _profiles(
    path: Path, files: Mapping[str, bytes], programs: Mapping[str, ProgramTimes], gpus: int
) -> Iterator[ProgramProfile]:
    for name, times in programs.items():
        with damage_is_named(path, name), scratch_folder() as folder:
            write_program(files, name, folder)
            plan = plan_in(folder)
            topology = f"1x{gpus}" if gpus > 1 else plan.topology
            plan = replace(plan, stated_trips=times.trips, topology=topology)
        yield ProgramProfile(name, plan, times)


def members(content: bytes) -> dict[str, bytes]:
    """The files of an archive by name, which are regular ones and as large as their bytes in it."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            end = member.offset_data + member.size
            if not member.isreg() or member.issparse() or end > len(content):
                raise ValueError(f"expected a regular file, found {member.name!r:.80}")
            files[member.name] = content[member.offset_data : end]
    return files


def write_program(files: Mapping[str, bytes], name: str, folder: Path) -> None:
    """Writes XLA's files of one program into a folder, each by its last name."""
    for member, data in files.items():
        program, _, file = member.rpartition("/")
        if program == name and (KEPT_FILES.search(file) or file == _KERNEL_CODES):
            (folder / file).write_bytes(whole(data) if file.endswith(_MODULE) else data)


def record_of(folder: Path, about: RecordAbout, timed: Mapping[str, TimedCalls]) -> bytes:
    """The record of programs that `time_programs` timed, with XLA's files of each in a folder."""
    programs = {name: _joined(folder / name, calls) for name, calls in sorted(timed.items())}
    return record_with(folder, about, programs)


def record_with(folder: Path, about: RecordAbout, programs: Mapping[str, ProgramTimes]) -> bytes:
    """The record of programs whose times are known, with XLA's files of each in a folder."""
    times = asdict(about) | {
        "programs": {name: asdict(program) for name, program in programs.items()}
    }
    files = {_TIMES: json.dumps(times, separators=(",", ":")).encode()}
    for name in programs:
        for file in sorted((folder / name).iterdir()):
            if file.name == _KERNEL_CODES or KEPT_FILES.search(file.name):
                files[f"{name}/{file.name}"] = file.read_bytes()
    return packed(files)


def _joined(folder: Path, timed: TimedCalls) -> ProgramTimes:
    """The measured times of a program, joined with its plan."""
    measured = join_profile(plan_in(folder), timed.events, len(timed.calls), timed.calls)
    return ProgramTimes(
        span_seconds=round(measured.span_seconds, 9),
        kernel_seconds=round(measured.kernel_seconds, 9),
        wall_seconds=round(median(timed.wall_seconds), 9),
        kernels={
            kernel.name: (kernel.launches, round(kernel.seconds, 9)) for kernel in measured.kernels
        },
    )


def packed(files: Mapping[str, bytes]) -> bytes:
    """An archive of files by name, in which equal kernels of modules are stored once."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            stored = slim(data) if name.endswith(_MODULE) else data
            member = tarfile.TarInfo(name)
            member.size = len(stored)
            archive.addfile(member, io.BytesIO(stored))
    return lzma.compress(content.getvalue(), preset=9)


def plan_in(folder: Path) -> Plan:
    """The plan of a program that was timed, with the codes of its Pallas kernels."""
    plan, path = read_path(folder), folder / _KERNEL_CODES
    if not path.exists():
        return plan
    codes = json.loads(path.read_text(encoding="utf-8"))
    return replace(plan, kernel_codes=tuple(typed(KernelCode, code) for code in codes))


def write_kernel_codes(folder: Path, codes: Sequence[KernelCode]) -> None:
    """Write the counted code of Pallas kernels beside XLA's files, which lack it."""
    text = json.dumps([asdict(code) for code in codes], separators=(",", ":"))
    (folder / _KERNEL_CODES).write_text(text, encoding="utf-8")


def slim(module: bytes) -> bytes:
    """A serialised HloProto in the small form."""
    proto = HloProto.FromString(module)
    hlo, buffers = proto.hlo_module, proto.buffer_assignment
    buffers.DiscardUnknownFields()
    hlo.ClearField("stack_frame_index")
    numbers: dict[int, int] = {}
    for computation in hlo.computations:
        for instruction in computation.instructions:
            numbers[instruction.id] = len(numbers) + 1
    # The computations whose instructions have names that kernels are known by.
    scheduled = set(hlo.schedule.sequences or [item.id for item in hlo.computations])
    for computation in hlo.computations:
        for instruction in computation.instructions:
            number = numbers[instruction.id]
            for others in (instruction.operand_ids, instruction.control_predecessor_ids):
                others[:] = [number - numbers[other] for other in others]
            instruction.ClearField("id")
            instruction.ClearField("metadata")
            if computation.id not in scheduled:
                instruction.ClearField("name")
        computation.root_id = number - numbers[computation.root_id]
    for sequence in hlo.schedule.sequences.values():
        order = [numbers[item] for item in sequence.instruction_ids]
        sequence.instruction_ids[:] = [after - before for before, after in pairwise((0, *order))]
    _number_buffers(buffers)
    for buffer in buffers.logical_buffers:
        buffer.defined_at.instruction_id = numbers[buffer.defined_at.instruction_id]
    return proto.SerializeToString(deterministic=True)


def whole(module: bytes) -> bytes:
    """A serialised HloProto from its small form; bodies' instructions are named by their number."""
    proto = HloProto.FromString(module)
    hlo, numbers = proto.hlo_module, count(1)
    for computation in hlo.computations:
        for instruction in computation.instructions:
            number = instruction.id = next(numbers)
            for others in (instruction.operand_ids, instruction.control_predecessor_ids):
                others[:] = [number - distance for distance in others]
            instruction.name = instruction.name or f"in_a_body.{number}"
        computation.root_id = number - computation.root_id
    for sequence in hlo.schedule.sequences.values():
        sequence.instruction_ids[:] = list(accumulate(sequence.instruction_ids))
    for number, buffer in enumerate(proto.buffer_assignment.logical_buffers, 1):
        buffer.id = number
    for number, assigned in enumerate(_assigned(proto.buffer_assignment), 1):
        assigned.logical_buffer_id = number
    return proto.SerializeToString(deterministic=True)


def _assigned(buffers: BufferAssignmentProto) -> Iterator[BufferAllocationProto.Assigned]:
    for allocation in buffers.buffer_allocations:
        yield from allocation.assigned


def _number_buffers(buffers: BufferAssignmentProto) -> None:
    """Put buffers into the order in which allocations have them, without ids."""
    order = {item.logical_buffer_id: number for number, item in enumerate(_assigned(buffers))}
    buffers.logical_buffers.sort(key=lambda buffer: order.get(buffer.id, len(order)))
    for buffer in buffers.logical_buffers:
        buffer.ClearField("id")
    for assigned in _assigned(buffers):
        assigned.ClearField("logical_buffer_id")
