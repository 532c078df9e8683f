"""Find the line of the program's own code for a stack frame."""

import re
from collections.abc import Sequence

from xlapipe.plans import SourceLine

# Folders of installed packages and of Python's standard library: as the machine that compiled names
# them, and as capture writes them into a dump.
_LIBRARY_FOLDER = re.compile(
    r"(?:^|/)(?:(?:site|dist)-packages|<site-packages>|<python>|lib(?:32|64)?/python3\.\d+t?)/"
)


class StackFrames:
    """Stack frames by id; ids count from 1.

    Args:
      frames: (file, line, id of the parent frame or 0) of each frame.
    """

    def __init__(self, frames: Sequence[tuple[str, int, int]] = ()) -> None:
        self._frames = frames
        # Nearest own code from each frame outward, including the frame itself; filled on demand.
        self._own_line: dict[int, SourceLine | None] = {}

    def source_line(self, frame_id: int) -> SourceLine | None:
        """Line of the innermost frame outside installed libraries, or else of the innermost frame.

        None for id 0 and for an id that is not in the dump.
        """
        if not 0 < frame_id <= len(self._frames):
            return None
        own = self._own_code(frame_id)
        if own is not None:
            return own
        file, line, _ = self._frames[frame_id - 1]
        return SourceLine(file, line)

    def _own_code(self, frame_id: int) -> SourceLine | None:
        visited: list[int] = []
        own_line: SourceLine | None = None
        while 0 < frame_id <= len(self._frames):
            if frame_id in self._own_line:
                own_line = self._own_line[frame_id]
                break
            self._own_line[frame_id] = None  # so that a cycle of frames ends
            visited.append(frame_id)
            file, line, parent = self._frames[frame_id - 1]
            if is_own_code(file):
                own_line = SourceLine(file, line)
                break
            frame_id = parent
        for visited_id in visited:
            self._own_line[visited_id] = own_line
        return own_line


def is_own_code(file: str) -> bool:
    """Whether `file` belongs to the program rather than to an installed library or Python."""
    return not file.startswith("<frozen ") and not _LIBRARY_FOLDER.search(file.replace("\\", "/"))
