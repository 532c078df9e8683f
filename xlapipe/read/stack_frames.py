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
        # Nearest own code from each frame outward, itself included; filled when asked for.
        self._own: dict[int, SourceLine | None] = {}

    def source_line(self, frame_id: int) -> SourceLine | None:
        """Innermost frame outside installed libraries; the innermost where all are inside.

        None for id 0 and for an id that the dump does not hold.
        """
        if not 0 < frame_id <= len(self._frames):
            return None
        own = self._own_code(frame_id)
        if own is not None:
            return own
        file, line, _ = self._frames[frame_id - 1]
        return SourceLine(file, line)

    def _own_code(self, frame_id: int) -> SourceLine | None:
        passed: list[int] = []
        found: SourceLine | None = None
        while 0 < frame_id <= len(self._frames):
            if frame_id in self._own:
                found = self._own[frame_id]
                break
            self._own[frame_id] = None  # ends a circle of frames
            passed.append(frame_id)
            file, line, parent = self._frames[frame_id - 1]
            if is_own_code(file):
                found = SourceLine(file, line)
                break
            frame_id = parent
        for frame in passed:
            self._own[frame] = found
        return found


def is_own_code(file: str) -> bool:
    """Whether `file` belongs to the program rather than to an installed library or Python."""
    if file.startswith("<frozen "):
        return False
    return not any(folder in _LIBRARY_FOLDERS for folder in file.replace("\\", "/").split("/"))
