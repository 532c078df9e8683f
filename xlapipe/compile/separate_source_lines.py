"""Take the stack frames out of XLA's dump files, so that moved lines of source change none of them.

What is taken out of the optimised module is returned. Numbers of frames in other files have no
meaning without it, and are left out.
"""

import hashlib
import re
from collections.abc import Mapping

from xlapipe.compile.wire_format import Change, with_fields
from xlapipe.devices.platforms.dump_files import Part
from xlapipe.dump.readers.hlo_proto import (
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    HloProto,
    OpMetadata,
)
from xlapipe.dump.readers.source_lines import FrameLocation, SourceLines

# Up to the empty line after the entries.
_TABLE = re.compile(
    rb"(?m)^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*\n*"
)
# The number, after fields whose texts and braces may hold anything.
_FRAME = re.compile(
    rb'(metadata=\{(?:[^"{}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"|\{[^"{}\n]*\}))*[^"{}\n]*?)'
    rb" ?\bstack_frame_id=\d+"
)

_MODULE, _COMPUTATIONS, _FRAMES, _INSTRUCTIONS, _METADATA, _FRAME_OF = (
    message.DESCRIPTOR.fields_by_name[name].number
    for message, name in (
        (HloProto, "hlo_module"),
        (HloModuleProto, "computations"),
        (HloModuleProto, "stack_frame_index"),
        (HloComputationProto, "instructions"),
        (HloInstructionProto, "metadata"),
        (OpMetadata, "stack_frame_id"),
    )
)


def module_without_frames(proto: bytes) -> bytes:
    """A serialised HloProto without stack frames; all else keeps its bytes.

    Args:
      proto: as C++ writes it, with fields in the order of their numbers.

    Raises:
      ValueError, IndexError: the bytes are not an HloProto.
    """

    def changing(fields: Mapping[int, Change | None]) -> Change:
        return lambda content: with_fields(content, fields)

    instruction = changing({_METADATA: changing({_FRAME_OF: None})})
    module = {_COMPUTATIONS: changing({_INSTRUCTIONS: instruction}), _FRAMES: None}
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

    Args:
      without_frames: the same HloProto, as a dump holds it.
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
