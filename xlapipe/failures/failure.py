"""A memory failure, as a log reports it."""

from dataclasses import dataclass, field
from enum import StrEnum

from xlapipe.failures.allocator_dump import AllocatorDump
from xlapipe.failures.sizes import LoggedSize


class FailureKind(StrEnum):
    """What failed, or why it failed."""

    EXECUTION = "execution"
    COMPILE = "compile"
    ARGUMENT = "argument"
    AUTOTUNING = "autotuning"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other_process"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class LoggedBuffer:
    """A buffer that XLA lists in its error.

    Attributes:
      op_name, source, label, shape: None if XLA did not print it.
      source: `file:line`.
      label: the HLO instruction.
    """

    size_bytes: int
    op_name: str | None = None
    source: str | None = None
    label: str | None = None
    shape: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryFailure:
    """One failure. A figure that the log does not contain is None.

    Attributes:
      line: line number of the message in the log, from 1.
      message: the message, on one line.
      reason: the part of the log that decided `kind`.
      requested: what was asked for: one allocation, or, if a compile failed, the whole program.
      executable_name: the module, e.g. `jit_train_step`.
      device: as the log names it, e.g. `GPU_0`.
      limit_bytes: what the allocator or the compiler may use.
      held_bytes: what was in use in the allocator.
      parts: names and bytes of parts of the request or of the program.
      buffers: the largest buffers of the program, as XLA lists them.
      allocator: the allocator's own dump.
      raised: whether it is the message of an exception, which can end the run.
    """

    kind: FailureKind
    line: int
    message: str
    reason: str
    requested: LoggedSize | None = None
    executable_name: str | None = None
    device: str | None = None
    limit_bytes: int | None = None
    held_bytes: int | None = None
    parts: tuple[tuple[str, int], ...] = ()
    buffers: tuple[LoggedBuffer, ...] = field(default=())
    allocator: AllocatorDump | None = None
    raised: bool = False

    @property
    def requested_bytes(self) -> int | None:
        """Bytes of `requested`."""
        return self.requested.size_bytes if self.requested is not None else None
