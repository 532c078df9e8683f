"""From XLA's dump files to a Dump that is the same on every machine.

XLA writes absolute source paths into HLO. A golden must hold none, so they are made relative:
to the user's folder, to `<site-packages>`, or to `<python>`; a cell of a notebook is `In[3]`.
Lines go to a separate file: the stack frames are taken out of XLA's files, so that moved lines of
source change none of them. Numbers of frames in files have no meaning without it.
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.message import Message

from xlapipe.compile.job import Job
from xlapipe.compile.messages import CompileRecord
from xlapipe.compile.user_environment import left_out
from xlapipe.compile.wire_format import FieldChange, in_number_order, with_fields
from xlapipe.devices.platforms.dump_files import MODULE, SOURCE_LINES, DumpFile, Part
from xlapipe.devices.targets.catalogue import name_of_target
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.dump.autotune_lock import LOCK, AutotuneLock
from xlapipe.dump.dump import EXECUTABLE, TARGET_CONFIG, Dump, check_memory_analysis
from xlapipe.dump.manifest import Manifest, with_requested_lines
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.hlo_proto import (
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    HloProto,
    HloScheduleProto,
    OpMetadata,
    StackFrameIndexProto,
)
from xlapipe.dump.readers.proto_reader import read_module
from xlapipe.dump.readers.source_lines import FrameLocation, SourceLines
from xlapipe.errors import CompileError
from xlapipe.plans import Instruction, Plan
from xlapipe.plans.gemms import requested_dots
from xlapipe.plans.missing_memory import sorts_for_cub
from xlapipe.plans.opcodes import DOTS
from xlapipe.plans.program import (
    ArgumentLeaf,
    CompileFacts,
    OutputLeaf,
    RequestedCollective,
    RequestedDot,
)
from xlapipe.plans.workspaces import workspaces_of

# Up to the empty line after the entries.
_TABLE = re.compile(
    rb"(?m)^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*\n*"
)
# The number, after fields whose texts and braces may hold anything.
_FRAME = re.compile(
    rb'(metadata=\{(?:[^"{}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"|\{[^"{}\n]*\}))*[^"{}\n]*?)'
    rb" ?\bstack_frame_id=\d+"
)

_INSTRUCTIONS, _METADATA, _FRAME_OF = (
    message.DESCRIPTOR.fields_by_name[name].number
    for message, name in (
        (HloComputationProto, "instructions"),
        (HloInstructionProto, "metadata"),
        (OpMetadata, "stack_frame_id"),
    )
)
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_MODULE = HloProto.DESCRIPTOR.fields_by_name["hlo_module"].number
_COMPUTATIONS, _SCHEDULE, _STACK_FRAMES = (
    HloModuleProto.DESCRIPTOR.fields_by_name[name].number
    for name in ("computations", "schedule", "stack_frame_index")
)
# Limit on the file with the values of the buffer assignment.
_LARGEST_VALUES_BYTES = 64 << 20
_HEAD_BYTES = 64 << 10
_VALUES_HEADING = b"\nUsed values:\n"


def capture(job: Job, record: CompileRecord, *, where: str) -> tuple[Dump, dict[str, bytes]]:
    """The Dump of a compile, and the contents of its files by name."""
    relative = _Relative(Path(job.source_root))
    paths = {file: _path_of(job.dump_folder, file) for file in job.platform.dump_files}
    xla_files = {file: _content(file, path) for file, path in paths.items() if path is not None}
    files = {
        file.name: without_frames(file.part, content)
        for file, content in xla_files.items()
        if file.name is not None
    }
    proto = relative.in_proto(xla_files[job.platform.dump_file(Part.PROTO)])
    lines = source_lines(proto, files[MODULE])
    before = xla_files[job.platform.dump_file(Part.BEFORE_PROTO)]

    canonical = job.scratch / "canonical"
    canonical.mkdir()
    for name, content in {**files, SOURCE_LINES: lines.to_bytes()}.items():
        (canonical / name).write_bytes(content)
    plan = record.in_plan(read_path(canonical))
    dots: tuple[Instruction, ...] = ()
    if any(opcode.encode() in before for opcode in DOTS):  # reading it takes a while
        dots = requested_dots(read_module(relative.in_proto(before), where=where))
    lock = _lock(job, record, plan)
    if lock is not None:
        files[LOCK] = lock.to_bytes()
    if job.executable_path.exists():
        files[EXECUTABLE] = job.executable_path.read_bytes()
    manifest = _manifest(job, record, lock, dots, plan, relative)
    check_memory_analysis(plan, manifest.memory_analysis, where=where)
    files[SOURCE_LINES] = with_requested_lines(lines, manifest).to_bytes()
    config = files.get(TARGET_CONFIG)
    config_text = config.decode() if config is not None else None
    dump = Dump(
        plan,
        facts=manifest,
        target_config=config_text,
        path=Path(where),
    )
    return dump, files


def _lock(job: Job, record: CompileRecord, plan: Plan) -> AutotuneLock | None:
    """The lock that was used, or the one that tuning made."""
    if job.lock is not None:
        # The attached GPU's config is known only now; a lock may be of another device.
        device = target_attached(record.target_config) if job.target is None else None
        job.lock.refuse_unless(
            where="(--tuning)",
            workload=record.workload,
            device=device.description if device is not None else None,
        )
        return job.lock
    if not job.tuned_path.exists():
        return None
    device = target_attached(record.target_config)
    return AutotuneLock(
        workload=record.workload,
        gemm_policy=job.policy.value,
        target=name_of_target(device),
        device=device.description,
        compute_capability=device.compute_capability,
        device_memory_bytes=device.device_memory_bytes,
        versions=record.versions,
        target_config=device.config_text,
        results=job.tuned_path.read_text(encoding="utf-8"),
        topology=record.topology,
        workspaces=workspaces_of(plan.calls_finished_on_device),
    )


def _manifest(
    job: Job,
    record: CompileRecord,
    lock: AutotuneLock | None,
    dots: tuple[Instruction, ...],
    plan: Plan,
    relative: "_Relative",
) -> Manifest:
    if lock is not None:
        target = lock.as_target()
    else:
        target = job.target or target_attached(record.target_config)
    facts = {item.name: getattr(record, item.name) for item in fields(CompileFacts)}
    extra = {name: str(value) for name, value in job.options.items()}
    policy = {name: str(value) for name, value in job.policy_options.items()}
    collectives = record.requested_collectives or ()
    facts["asked_early"] = tuple(map(relative.in_lines, record.asked_early))
    if record.mesh is not None:
        facts["arguments"] = _arguments_on_one_device(record.arguments, plan)
        facts["outputs"] = _outputs_on_one_device(record.outputs, plan)
    return Manifest(
        **{
            **facts,
            "options": {**record.options, **policy, **extra},
            "target": target.name,
            "gemm_policy": job.policy.value,
            "requested_dots": tuple(
                RequestedDot(dot.op_name, dot.shape.text, dot.source) for dot in dots
            ),
            "requested_collectives": tuple(map(relative.in_collective, collectives)),
            "sorts_undecided": record.sorts_undecided and any(sorts_for_cub(plan.module)),
        },
        target_description=target.description,
        target_source=target.source,
        platform=job.platform.name,
        reference=job.reference.name if job.reference.name != record.workload else None,
        tuned=lock is not None and record.fusion_without_result is None,
        extra_options=extra,
        without_xla_patches=tuple(sorted(job.without_xla_patches)),
        left_out=tuple(left_out(os.environ, lowered_here=job.program is not None)),
    )


def _arguments_on_one_device(
    arguments: tuple[ArgumentLeaf, ...], plan: Plan
) -> tuple[ArgumentLeaf, ...]:
    """Arguments with their bytes on one device, which XLA decides where no spec does."""

    def on_one_device(leaf: ArgumentLeaf) -> ArgumentLeaf:
        parameter = plan.parameter(leaf.parameter_number)
        if parameter is None or parameter.shape.is_tuple or parameter.shape.size_bytes is None:
            return leaf
        return replace(leaf, size_bytes=parameter.shape.size_bytes)

    return tuple(map(on_one_device, arguments))


def _outputs_on_one_device(outputs: tuple[OutputLeaf, ...], plan: Plan) -> tuple[OutputLeaf, ...]:
    """Outputs with their bytes on one device, which XLA decides where no spec does."""
    arrays = plan.result_shape.arrays if plan.result_shape is not None else ()
    if len(arrays) != len(outputs):
        raise CompileError(
            f"the module has {len(arrays)} outputs where the program has {len(outputs)}: "
            "tokens or tuples of other form are not supported over several devices; fix: return "
            "arrays from the step"
        )
    return tuple(
        replace(leaf, size_bytes=array.size_bytes or 0)
        for leaf, array in zip(outputs, arrays, strict=True)
    )


def _content(file: DumpFile, path: Path) -> bytes:
    """A file's bytes, but of a long list of values only what is before it, with XLA's total.

    XLA lists each value at each position where it is used: with the square of the leaves that a
    loop carries, 600 MB for 3,000 of them. No figure is made of the list.
    """
    size_bytes = path.stat().st_size
    if file.part is not Part.VALUES or size_bytes <= _LARGEST_VALUES_BYTES:
        return path.read_bytes()
    with path.open("rb") as stream:
        head, heading, _ = stream.read(_HEAD_BYTES).partition(_VALUES_HEADING)
    left_out = f"left out: {size_bytes - len(head) - len(heading):,} B, since no figure needs them"
    return head + heading + left_out.encode() + b"\n"


def _path_of(folder: Path, file: DumpFile) -> Path | None:
    """The one file with the first of the endings that is there; None for a missing optional one."""
    for ending in file.endings:
        paths = sorted(folder.glob(f"*{ending}")) if folder.is_dir() else []
        if len(paths) == 1 or (paths and not file.required):
            return paths[0]
        if paths:
            raise CompileError(
                f"{folder}: expected one XLA dump file *{ending}, found "
                f"{', '.join(path.name for path in paths)}; fix: compile one module per workload"
            )
    if not file.required:
        return None
    raise CompileError(
        f"{folder}: expected an XLA dump file *{file.endings[0]}, found none; "
        "fix: use a jaxlib that xlapipe supports (0.10 to 0.12)"
    )


class _Relative:
    """Makes absolute source paths relative."""

    def __init__(self, folder: Path) -> None:
        package_root, stdlib = Path(__file__).parents[2], os.path.dirname(os.__file__)
        self._roots = [(f"{folder}/", ""), (f"{package_root}/", ""), (f"{stdlib}/", "<python>/")]
        self._cells = cell_numbers()

    def path(self, path: str) -> str:
        if not path.startswith("/"):
            return path
        if path in self._cells:
            return f"In[{self._cells[path]}]"
        if _PACKAGES.match(path):
            return _PACKAGES.sub("<site-packages>/", path, count=1)
        for root, replacement in self._roots:
            if path.startswith(root):
                return replacement + path.removeprefix(root)
        return f"<elsewhere>/{PurePosixPath(path).name}"

    def in_lines(self, text: str) -> str:
        """A text with relative paths in its lines of source, `file:line`."""
        # The folders may have spaces in their names.
        roots = (f"{re.escape(root)}[^:`]+" for root, _ in self._roots)
        pattern = f"(?:{'|'.join(roots)}|/[^\\s:`]+)(?=:\\d)"
        return re.sub(pattern, lambda match: self.path(match[0]), text)

    def in_collective(self, collective: RequestedCollective) -> RequestedCollective:
        """A collective of the traced program with a relative source path."""
        source = collective.source
        if source is None:
            return collective
        return replace(collective, source=replace(source, file=self.path(source.file)))

    def in_proto(self, content: bytes) -> bytes:
        """A serialised HloProto with relative source paths, and its maps in the order of keys."""
        return with_fields(content, {_MODULE: self._in_module})

    def _in_module(self, content: bytes) -> bytes:
        changed = {
            _SCHEDULE: lambda schedule: _canonical_bytes(HloScheduleProto.FromString(schedule)),
            _STACK_FRAMES: self._in_stack_frames,
        }
        return with_fields(content, changed)

    def _in_stack_frames(self, content: bytes) -> bytes:
        index = StackFrameIndexProto.FromString(content)
        index.file_names[:] = map(self.path, index.file_names)
        return _canonical_bytes(index)


def _canonical_bytes(message: Message) -> bytes:
    """The bytes of a message, the same from every version of protobuf and of the schema."""
    return in_number_order(message.SerializeToString(deterministic=True), type(message))


def cell_numbers() -> Mapping[str, int]:
    """The number of each cell, as in `In [3]`, by its file name; empty without IPython."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    numbers: Mapping[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return numbers


def module_without_frames(proto: bytes) -> bytes:
    """A serialised HloProto without stack frames; all else keeps its bytes."""

    def changing(fields: Mapping[int, FieldChange | None]) -> FieldChange:
        return lambda content: with_fields(content, fields)

    instruction = changing({_METADATA: changing({_FRAME_OF: None})})
    module = {_COMPUTATIONS: changing({_INSTRUCTIONS: instruction}), _STACK_FRAMES: None}
    return with_fields(proto, {_MODULE: changing(module)})


def without_frames(part: Part, content: bytes) -> bytes:
    """A file of a dump without stack frames; all else keeps its bytes."""
    if part in (Part.BEFORE, Part.HLO, Part.VALUES):
        # The tables are in front of the computations, which may be large.
        end = content.find(b"\n%") + 1 or len(content)
        return _FRAME.sub(rb"\1", _TABLE.sub(b"", content[:end]) + content[end:])
    if part is Part.PROTO:
        return module_without_frames(content)
    return content


def source_lines(proto: bytes, without_frames: bytes) -> SourceLines:
    """The stack frames of the instructions of a serialised HloProto.

    XLA's names are distinct in a module. A name that two instructions had in common would have no
    frame, rather than one of the two.
    """
    module = HloProto.FromString(proto).hlo_module
    index = module.stack_frame_index
    files, functions = ["", *index.file_names], ["", *index.function_names]
    frame_of: dict[str, int] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            frame = instruction.metadata.stack_frame_id
            if frame_of.setdefault(instruction.name, frame) != frame:
                frame_of[instruction.name] = 0
    return SourceLines(
        module_sha256=hashlib.sha256(without_frames).hexdigest(),
        locations=tuple(
            FrameLocation(
                files[place.file_name_id],
                functions[place.function_name_id],
                place.line,
                place.column,
            )
            for place in index.file_locations
        ),
        frames=tuple(
            (frame.file_location_id, frame.parent_frame_id) for frame in index.stack_frames
        ),
        instructions=_names_by_frame(frame_of, len(index.stack_frames)),
    )


def _names_by_frame(frame_of: Mapping[str, int], count: int) -> tuple[str, ...]:
    names: list[list[str]] = [[] for _ in range(count + 1)]
    for name, frame in frame_of.items():
        if 0 < frame <= count:
            names[frame].append(name)
    return tuple(" ".join(items) for items in names[1:])
