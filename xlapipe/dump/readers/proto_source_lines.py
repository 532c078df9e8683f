"""Put a dump's source lines back into its module, for tools that read XLA's protobuf."""

from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.dump.readers.source_lines import SourceLines


def with_stack_frames(proto: bytes, lines: SourceLines) -> bytes:
    """A serialised HloProto with the stack frames of its instructions.

    Args:
      proto: one that a dump holds, without frames.
    """
    message = HloProto.FromString(proto)
    module = message.hlo_module
    index = module.stack_frame_index
    files = list(dict.fromkeys(place.file for place in lines.locations))
    functions = list(dict.fromkeys(place.function for place in lines.locations))
    index.file_names.extend(files)
    index.function_names.extend(functions)
    for place in lines.locations:
        index.file_locations.add(
            file_name_id=files.index(place.file) + 1,
            function_name_id=functions.index(place.function) + 1,
            line=place.line,
            column=place.column,
        )
    for location, parent in lines.frames:
        index.stack_frames.add(file_location_id=location, parent_frame_id=parent)
    for computation in module.computations:
        for instruction in computation.instructions:
            frame = lines.frame_of.get(instruction.name)
            if frame is not None:
                instruction.metadata.stack_frame_id = frame
    return message.SerializeToString()
