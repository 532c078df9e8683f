"""Find the line of the program's own code for a stack frame."""

from collections.abc import Sequence

from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import Frame


class StackFrames:
    """Stack frames by id; ids count from 1.

    Args:
      frames: in the order of their ids.
    """

    def __init__(self, frames: Sequence[Frame] = ()) -> None:
        self.frames = frames
        # Nearest own code from each frame outward, including the frame itself; filled on demand.
        self._own_line: dict[int, SourceLine | None] = {}

    def source_line(self, frame_id: int) -> SourceLine | None:
        """Line of the innermost frame outside installed libraries, or else of the innermost frame.

        None for id 0 and for an id that is not in the dump.
        """
        if not 0 < frame_id <= len(self.frames):
            return None
        own = self._own_code(frame_id)
        if own is not None:
            return own
        frame = self.frames[frame_id - 1]
        return SourceLine(frame.file, frame.line)

    def _own_code(self, frame_id: int) -> SourceLine | None:
        visited: list[int] = []
        own_line: SourceLine | None = None
        while 0 < frame_id <= len(self.frames):
            if frame_id in self._own_line:
                own_line = self._own_line[frame_id]
                break
            self._own_line[frame_id] = None  # so that a cycle of frames ends
            visited.append(frame_id)
            frame = self.frames[frame_id - 1]
            if frame.is_own_code:
                own_line = SourceLine(frame.file, frame.line)
                break
            frame_id = frame.parent
        for visited_id in visited:
            self._own_line[visited_id] = own_line
        return own_line
