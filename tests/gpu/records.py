"""Raw records: programs that were timed on a GPU, as XLA compiled them, with their times.

    python -m tests.gpu.records calibration RECORD OUT      # a calibration by today's formulas
    python -m tests.gpu.records probes RECORD               # times the probes of the attached GPU

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
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, count, pairwise
from pathlib import Path

from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.devices.targets.catalogue import row_of_device
from xlapipe.devices.targets.device import Device, device_of_config, device_of_target
from xlapipe.dump.readers.hlo_proto import (
    BufferAllocationProto,
    BufferAssignmentProto,
    HloProto,
)
from xlapipe.files.typed_data import typed
from xlapipe.run.calibration.fit import calibration_of
from xlapipe.run.calibration.profiles import (
    KEPT_FILES,
    KERNEL_CODES,
    ProgramProfile,
    ProgramTimes,
    plan_in,
    profile_of,
)
from xlapipe.time.predict.calibration import Calibration

_TIMES, _MODULE = "times.json", ".hlo.pb"


@dataclass(frozen=True)
class RecordedTimes(ProgramTimes):
    """Also of zoos.

    Attributes:
      step_seconds: of a call in a loop of calls back to back; None if that was not timed.
      trips: of each loop whose number the plan does not state; None if unknown.
    """

    trips: int | None = None
    step_seconds: float | None = None


@dataclass(frozen=True)
class RecordAbout:
    """Where a record is from.

    Attributes:
      gpus: that ran each program together, of one host.
      target_config: GpuTargetConfigProto of the device, as text; empty if it is the catalogue's.
    """

    device: str
    driver: str
    date: str
    versions: Mapping[str, str]
    command: str
    gpus: int = 1
    target_config: str = ""


@dataclass(frozen=True, kw_only=True)
class _Times(RecordAbout):
    programs: Mapping[str, RecordedTimes]


def read_record(path: Path, only: str = "") -> tuple[RecordAbout, Iterator[ProgramProfile]]:
    """Where a record is from, and its programs, each read when it is needed."""
    with tarfile.open(path, mode="r:xz") as archive:
        files = {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]
    times = typed(_Times, json.loads(files[_TIMES]))
    return times, _profiles(files, times, only)


def _profiles(files: Mapping[str, bytes], about: _Times, only: str) -> Iterator[ProgramProfile]:
    for name, times in about.programs.items():
        if name != (only or name):
            continue
        with scratch_folder() as folder:
            write_program(files, name, folder)
            plan = plan_in(folder)
        topology = f"1x{about.gpus}" if about.gpus > 1 else plan.topology
        plan = replace(plan, stated_trips=times.trips, topology=topology)
        yield ProgramProfile(name, plan, times)


def write_program(files: Mapping[str, bytes], name: str, folder: Path) -> None:
    """Writes XLA's files of one program into a folder, each by its last name."""
    for member, data in files.items():
        program, _, file = member.rpartition("/")
        if program == name and (KEPT_FILES.search(file) or file == KERNEL_CODES):
            (folder / file).write_bytes(whole(data) if file.endswith(_MODULE) else data)


def device_of_record(about: RecordAbout) -> Device:
    """The device that ran a record's programs."""
    row = row_of_device(about.device)
    device = device_of_target(row.name) if row is not None else None
    if about.target_config:
        device = device_of_config(about.target_config)
    assert device is not None, f"the configuration of {about.device!r} is unknown"
    return device


def derived_calibration(path: Path) -> Calibration:
    """The calibration that follows from a record of probes by today's formulas."""
    about, profiles = read_record(path)
    provenance = {key: value for key, value in asdict(about).items() if key != "target_config"}
    del provenance["programs"]
    return calibration_of(list(profiles), device_of_record(about), provenance)


def record_with(folder: Path, about: RecordAbout, programs: Mapping[str, ProgramTimes]) -> bytes:
    """The record of programs whose times are known, with XLA's files of each in a folder."""
    times = asdict(about) | {
        "programs": {name: asdict(program) for name, program in programs.items()}
    }
    files = {_TIMES: json.dumps(times, separators=(",", ":")).encode()}
    for name in programs:
        for file in sorted((folder / name).iterdir()):
            if file.name == KERNEL_CODES or KEPT_FILES.search(file.name):
                files[f"{name}/{file.name}"] = file.read_bytes()
    return packed(files)


def record_of_probes(command: list[str]) -> bytes:
    """Times the probes on the attached GPU."""
    from xlapipe.run.calibration.probes import probes_for_attached  # import jax
    from xlapipe.run.calibration.time_programs import time_probes

    with scratch_folder() as folder:
        about, config, timed = time_probes(probes_for_attached(), folder, command, print)
        programs = {name: profile_of(folder, name, calls).times for name, calls in timed.items()}
        return record_with(folder, RecordAbout(**about, target_config=config), programs)


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


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    if what == "probes":
        Path(paths[0]).write_bytes(record_of_probes(sys.argv))
    else:
        Path(paths[1]).write_text(derived_calibration(Path(paths[0])).to_text(), encoding="utf-8")
