"""How long a compile took, by stage, and whether Python unrolled a loop that it compiled.

Seconds differ from run to run, so they are in `compile_times.json` beside a dump's files, and in no
golden.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal
from xlapipe.files.typed_data import Count, Line, Seconds, read_typed
from xlapipe.plans.hlo import SourceLine

COMPILE_TIMES = "compile_times.json"
_SCHEMA_VERSION = 1
_MAX_BYTES = 1 << 20
# Fewer copies are an ordinary loop, and a smaller share of the operations costs little.
_LEAST_COPIES, _LEAST_SHARE = 4, 0.1


@dataclass(frozen=True, slots=True)
class Copies:
    """Operations that Python traced repeatedly, as an unrolled loop does.

    Attributes:
      source: line of the first of them.
      times: how often most of them were traced.
      operations: number of all that were traced as often.
      of: number of operations in the program.
    """

    source: SourceLine | None
    times: Count
    operations: Count
    of: Count

    @property
    def advice(self) -> str:
        """What to change for a shorter compile; empty if the copies cost little."""
        share = self.operations / self.of * (1 - 1 / self.times)
        if self.times < _LEAST_COPIES or share < _LEAST_SHARE:
            return ""
        at = f"{self.source}: " if self.source is not None else ""
        return (
            f"{at}{self.operations:,} of {self.of:,} operations are {self.times} copies of a "
            "loop's body; jax.lax.scan compiles it once"
        )


@dataclass(frozen=True, kw_only=True)
class CompileTimes:
    """What a compile took.

    Attributes:
      seconds: wall time by stage: `load` (Python, jax, the user's module), `lower`, `compile`.
      copies: None if no operation was traced repeatedly.
    """

    seconds: Mapping[Line, Seconds] = field(default_factory=dict)
    copies: Copies | None = None

    @property
    def text(self) -> str:
        """The figures on one line, with what to change."""
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        advice = self.copies.advice if self.copies is not None else ""
        return f"{sum(self.seconds.values()):.1f} s: {stages}" + (f"; {advice}" if advice else "")

    def to_bytes(self) -> bytes:
        """The content of the file."""
        data = {"schema_version": _SCHEMA_VERSION, **asdict(self)}
        return f"{json.dumps(data, indent=1)}\n".encode()


def read_compile_times(folder: Path) -> CompileTimes | None:
    """What the compile of a dump took; None without the file, or if an earlier version wrote it.

    Raises:
      DumpError: it is damaged.
    """
    path = folder / COMPILE_TIMES
    if not os.path.lexists(path):
        return None
    times = read_typed(
        path,
        CompileTimes,
        limit_bytes=_MAX_BYTES,
        refusal=Refusal(DumpError, "remove the file, or dump the workload again"),
        follow_links=False,
        schema_version=_SCHEMA_VERSION,
    )
    return times if times.seconds else None
