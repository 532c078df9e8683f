"""From a stack frame to the line of the program's own code."""

from collections.abc import Sequence

from xlapipe.plan import SourceLine

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


class StackFrames:
    """Stack frames by their ids, which count from 1.

    Args:
      frames: (file, line, id of the parent frame or 0) of each frame.
    """

    def __init__(self, frames: Sequence[tuple[str, int, int]] = ()) -> None:
        self._frames = frames
        self._found: dict[int, SourceLine | None] = {}

    def source_line(self, frame_id: int) -> SourceLine | None:
        """Innermost frame outside installed libraries; the innermost where all are inside.

        None for id 0 and for an id that the dump does not hold.
        """
        if frame_id not in self._found:
            self._found[frame_id] = self._find(frame_id)
        return self._found[frame_id]

    def _find(self, frame_id: int) -> SourceLine | None:
        innermost: SourceLine | None = None
        # A chain longer than the table is a cycle.
        for _ in range(len(self._frames)):
            if not 0 < frame_id <= len(self._frames):
                break
            file, line, frame_id = self._frames[frame_id - 1]
            if is_own_code(file):
                return SourceLine(file, line)
            innermost = innermost or SourceLine(file, line)
        return innermost


def is_own_code(file: str) -> bool:
    """Whether `file` belongs to the program rather than to an installed library or Python."""
    if file.startswith("<frozen "):
        return False
    return not any(folder in _LIBRARY_FOLDERS for folder in file.replace("\\", "/").split("/"))
