"""A memory failure, as a log reports it."""

import re
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.report.failures.allocator_dump import AllocatorDump
from xlapipe.report.failures.sizes import SIZE, LoggedSize, parse_size


class FailureKind(StrEnum):
    """What failed, or why it failed."""

    EXECUTION = "execution"
    COMPILE = "compile"
    ARGUMENT = "argument"
    AUTOTUNING = "autotuning"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other_process"


class Memory(StrEnum):
    """Which memory ran out."""

    DEVICE = "device"
    HOST = "host"
    ON_CHIP = "on_chip"  # of a kernel: a GPU's shared memory, a TPU's VMEM or SMEM


@dataclass(frozen=True, slots=True)
class Call:
    """The last line of a traceback that is not of a library.

    Attributes:
      source: `file:line`.
      function: what that line calls, e.g. `train_step`; None if it calls several.
    """

    source: str
    function: str | None = None


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


@dataclass(frozen=True, slots=True)
class LoggedInstruction:
    """The HLO instruction whose kernels XLA was timing; `source` is `file:line`."""

    name: str
    shape: str
    source: str | None = None
    op_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryFailure:
    """One failure. A figure that the log does not contain is None.

    Attributes:
      line: line number of the last message of it in the log, from 1.
      message: the message, on one line.
      reason: the part of the log that decided `kind`.
      count: how many times the log has it.
      requested: what was asked for: one allocation, or, if a compile failed, the whole program.
      executable_name: the module, e.g. `jit_train_step`.
      device: as the log names it, e.g. `GPU_0`.
      limit_bytes: what the allocator or the compiler may use.
      call: the user's line in the traceback of the message.
      instruction: what XLA was timing, if autotuning failed.
      parts: names and bytes of parts of the request or of the program.
      buffers: the largest buffers of the program, as XLA lists them.
      allocator: the allocator's own dump.
      raised: whether it is the message of an exception, which can end the run.
    """

    kind: FailureKind
    line: int
    message: str
    reason: str
    count: int = 1
    requested: LoggedSize | None = None
    executable_name: str | None = None
    device: str | None = None
    memory: Memory = Memory.DEVICE
    limit_bytes: int | None = None
    call: Call | None = None
    instruction: LoggedInstruction | None = None
    parts: tuple[tuple[str, int], ...] = ()
    buffers: tuple[LoggedBuffer, ...] = ()
    allocator: AllocatorDump | None = None
    raised: bool = False

    @property
    def requested_bytes(self) -> int | None:
        """Bytes of `requested`."""
        return self.requested.size_bytes if self.requested is not None else None

    @property
    def held_bytes(self) -> int | None:
        """What was in use in the allocator."""
        return self.allocator.held_bytes if self.allocator is not None else None

    @property
    def free(self) -> LoggedSize | None:
        """What was free in the allocator."""
        return self.allocator.free_in_pool if self.allocator is not None else None

    @property
    def largest_free(self) -> LoggedSize | None:
        return self.allocator.largest_free if self.allocator is not None else None

    @property
    def exceeds_limit(self) -> bool:
        """Whether the request is larger than the limit, whatever else is in use."""
        return (
            self.requested is not None
            and self.limit_bytes is not None
            and self.requested.size_bytes - self.requested.slack_bytes > self.limit_bytes
        )

    @property
    def hardware(self) -> str:
        """`tpu` if a compiler for TPUs reports it, else `gpu`."""
        for_tpu = self.kind is FailureKind.COMPILE and "hared memory" not in self.message
        return "tpu" if for_tpu else "gpu"


_STATS = re.compile(
    r"(?P<name>parameter|constant|maybe_live_out|preallocated temp|total) allocation:"
    rf"\s+(?P<size>{SIZE})"
)
_FRAGMENTATION = re.compile(rf"(?:total|preallocated temp) fragmentation:\s+(?P<size>{SIZE})")
_USAGE = re.compile(
    r"(?m)^[ \t]*(?P<name>reserved|program|arguments|global|scoped|HLO temp)"
    rf"[ \t]+(?P<size>{SIZE})(?=\s)"
)
_BUFFER = re.compile(
    rf"(?:Buffer \d+:\s*|\b\d+\. )Size: (?P<size>{SIZE})(?P<rest>[\s\S]*?)={{10,}}"
)
_OP_NAME = re.compile(r'op_name="(?P<value>[^"]*)"')
_SOURCE = re.compile(r'source_file="(?P<file>[^"]*)" source_line=(?P<line>\d+)')
_LABEL = re.compile(r"XLA [Ll]abel: (?P<value>[^\n]+)")
_SHAPE = re.compile(r"(?:Shape|Subshape): (?P<value>[^\n]+)")


def read_buffers(text: str) -> tuple[LoggedBuffer, ...]:
    """The buffers that are listed in the text of one error, largest first as XLA lists them."""
    return tuple(_buffer(match) for match in _BUFFER.finditer(text))


def read_parts(text: str) -> tuple[tuple[str, int], ...]:
    """Names and bytes of the totals in the text of one error."""
    parts: dict[str, int] = {}
    for pattern in (_STATS, _USAGE):
        for match in pattern.finditer(text):
            parts.setdefault(match["name"], parse_size(match["size"]).size_bytes)
    fragmentation = _FRAGMENTATION.search(text)
    if fragmentation is not None:
        parts["fragmentation"] = parse_size(fragmentation["size"]).size_bytes
    return tuple(parts.items())


def _buffer(match: re.Match[str]) -> LoggedBuffer:
    rest = match["rest"]
    source = _SOURCE.search(rest)
    return LoggedBuffer(
        size_bytes=parse_size(match["size"]).size_bytes,
        op_name=_value(_OP_NAME, rest),
        source=f"{source['file']}:{source['line']}" if source is not None else None,
        label=_value(_LABEL, rest),
        shape=_value(_SHAPE, rest),
    )


def _value(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match["value"].strip() if match is not None else None
