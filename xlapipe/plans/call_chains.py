"""Call chains: the Python frames that were active when an instruction was traced."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from xlapipe.plans.short_repr import short_repr

# Folders of installed packages and of Python's standard library: as the machine that compiled names
# them, and as capture writes them into a dump.
_LIBRARY_FOLDER = re.compile(
    r"(?:^|/)(?:(?:site|dist)-packages|<site-packages>|<python>|lib(?:32|64)?/python3\.\d+t?)/"
)


class Frame(NamedTuple):
    """One frame of a stack.

    Attributes:
      parent: id of the frame that called it, counted from 1; 0 for the outermost one.
      function: empty if the dump does not name it.
    """

    file: str
    line: int
    parent: int
    function: str = ""

    @property
    def is_own_code(self) -> bool:
        """Whether the frame belongs to the program rather than to an installed library."""
        return is_own_code(self.file)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class CallChains:
    """The call chains of a module's instructions.

    Attributes:
      frames: by id, from 1.
      frame_of: the innermost frame of each instruction that has one, by its name.
    """

    __repr__ = short_repr

    frames: Sequence[Frame] = ()
    frame_of: Mapping[str, int] = field(default_factory=dict)

    def chain(self, name: str) -> tuple[Frame, ...]:
        """The frames of an instruction, innermost first; empty if the dump has none."""
        return self.from_frame(self.frame_of.get(name, 0))

    def from_frame(self, frame_id: int) -> tuple[Frame, ...]:
        """A frame and those that called it; empty for an id that the dump does not have."""
        chain: list[Frame] = []
        # A damaged dump may have a cycle of frames.
        while 0 < frame_id <= len(self.frames) and len(chain) < len(self.frames):
            chain.append(self.frames[frame_id - 1])
            frame_id = chain[-1].parent
        return tuple(chain)


@cache
def is_own_code(file: str) -> bool:
    """Whether `file` belongs to the program rather than to an installed library or Python."""
    return not file.startswith("<frozen ") and not _LIBRARY_FOLDER.search(file.replace("\\", "/"))
