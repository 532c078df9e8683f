"""The sentences with which XLA reports that memory ran out, and its warnings about memory.

Sources of the texts, jaxlib 0.4 to 0.12:

- GPU: xla/stream_executor/integrations/tf_allocator_adapter.cc (`MemoryAllocationError`),
  xla/stream_executor/stream_executor_address_allocator.cc, xla/service/gpu.
- TPU: libtpu's compiler, and docs/errors of openxla/xla (E1000, E1001).
- Warnings: xla/service/hlo_rematerialization.cc, xla/service/spmd/spmd_partitioner.cc,
  xla/service/gpu/gpu_hlo_schedule.cc.

A sentence may be folded over several lines, so every space matches any white space.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.plans.shapes import shape_of
from xlapipe.report.failures.sizes import SIZE_WITH_UNIT, LoggedSize, parse_size

HOST = "host"
# A kernel's own memory: a GPU's shared memory, spaces of a TPU's memory.
_ON_CHIP = re.compile(r"(?i)\b(?:[vsc]mem|sflag|shared memory)\b")
# A number without a unit is bytes.
_SIZE = rf"(?:{SIZE_WITH_UNIT}|\d+(?!\w|\.\d))"
SUPPORTED = (
    "RESOURCE_EXHAUSTED of XLA's allocator on a GPU, the dump of that allocator, a compile that "
    "needs more HBM, VMEM or shared memory than there is, and XLA's warnings about "
    "rematerialisation"
)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One sentence about a request that failed.

    Attributes:
      start: offset in the log.
      text: the sentence on one line, up to the end of its last word.
      by_compiler: whether a compile failed, not an allocation.
      is_usage: whether it is the head of a TPU compiler's table of what a program needs, which
        follows its error, or is all that a log has of it.
      place: `GPU_0`, or `host`.
    """

    start: int
    text: str
    by_compiler: bool = False
    is_usage: bool = False
    requested: LoggedSize | None = None
    limit: LoggedSize | None = None
    place: str | None = None

    @property
    def on_chip(self) -> bool:
        """Whether it is about a kernel's own memory."""
        return self.by_compiler and _ON_CHIP.search(self.text) is not None


def _pattern(text: str) -> re.Pattern[str]:
    sized = re.sub(r"(?<!\?P)<(\w+)>", lambda match: f"(?P<{match[1]}>{_SIZE})", text)
    return re.compile(sized.replace(" ", r"\s+"))


_OF_ALLOCATOR = (
    r"Out of memory while trying to allocate(?: <requested>)?"
    r"(?: with allocator (?P<allocator>\w+?)(?: on device (?P<ordinal>\d+))?\b)?",
    r"Out of (?P<host>host) memory while trying to allocate <requested>",
    r"Out of memory allocating <requested>",
    r"Failed to allocate <requested> for new constant",
    r"Allocating <requested> exceeds the memory limit of <limit>",
    r"Failed to allocate request for (?:\S+ )?\(<requested>\) on device ordinal (?P<ordinal>\d+)",
)
_OF_COMPILER = (
    r"Ran out of memory in memory space \w+(?:(?: while[\s\S]{0,4000}?)?\. "
    r"Used <requested> of <limit> \w+\. Exceeded \w+ capacity by \S+)?",
    r"Scoped allocation with size <requested> and limit <limit> exceeded scoped \w+ limit by \S+",
    r"Ran out of memory on HBM, the total memory required for HLO temporaries "
    r"\(<requested>\) exceeds available HBM \(<limit>\)",
    r"Aborting compilation early because it's unlikely to have enough (?:device )?memory\. "
    r"Requires <requested>, has <limit> available",
    r"(?P<usage>Program \w+ requirement <requested>:)",
    r"Shared memory size limit exceeded: requested <requested>, available: <limit>",
)
_PATTERNS = [
    *((False, _pattern(text)) for text in _OF_ALLOCATOR),
    *((True, _pattern(text)) for text in _OF_COMPILER),
]
_REST_OF_WORD = re.compile(r"[^\s\"'\]})]*")


def find_messages(text: str) -> Iterator[Message]:
    """Every such sentence in `text`."""
    for by_compiler, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            groups = match.groupdict()
            yield Message(
                start=match.start(),
                text=_sentence(text, match),
                by_compiler=by_compiler,
                is_usage=groups.get("usage") is not None,
                requested=_size(groups.get("requested")),
                limit=_size(groups.get("limit")),
                place=_place(groups),
            )


def _sentence(text: str, match: re.Match[str]) -> str:
    """The match and the rest of its last word, without the full stop."""
    rest = _REST_OF_WORD.match(text, match.end())
    whole = text[match.start() : rest.end() if rest is not None else match.end()]
    return " ".join(whole.split()).rstrip(".,;")


def _size(text: str | None) -> LoggedSize | None:
    return parse_size(text) if text is not None else None


def _place(groups: dict[str, str | None]) -> str | None:
    if groups.get("host"):
        return HOST
    if groups.get("ordinal") is not None:
        return f"GPU_{groups['ordinal']}"
    allocator = re.match(r"GPU_\d+", groups.get("allocator") or "")
    return allocator[0] if allocator is not None else None


class WarningKind(StrEnum):
    REMATERIALISATION = "rematerialisation"  # it could not reduce the program to its limit
    REPLICATED = "replicated"  # the partitioner replicates a whole array
    ARGUMENTS = "arguments"  # arguments and outputs alone exceed the limit


@dataclass(frozen=True, kw_only=True)
class MemoryWarning:
    """A warning of XLA while it compiled.

    Attributes:
      start: offset in the log.
      count: how many times the log has it.
      needed_bytes: what the program, its arguments, or the replicated array needs.
      limit_bytes: what XLA compiled the program for.
      original_bytes: what the program needed before rematerialisation.
      shape, instruction, sharding, source: of a replicated array; sharding as `FROM to TO`.
    """

    kind: WarningKind
    start: int
    line: int = 0
    count: int = 1
    message: str
    needed_bytes: int | None = None
    limit_bytes: int | None = None
    original_bytes: int | None = None
    shape: str | None = None
    instruction: str | None = None
    sharding: str | None = None
    source: str | None = None


_ROUNDED_BYTES = r"\S+ \((?P<{}>\d+) bytes\)"
_WARNINGS = {
    WarningKind.REMATERIALISATION: _pattern(
        rf"Can't reduce memory use below {_ROUNDED_BYTES.format('limit')} by rematerialization;? "
        rf"only reduced to {_ROUNDED_BYTES.format('needed')}"
        rf"(?:, down from {_ROUNDED_BYTES.format('original')} originally)?"
    ),
    WarningKind.REPLICATED: re.compile(
        r"Involuntary full rematerialization\. The compiler (?:was not able to|cannot) go from "
        r"sharding (?P<sharding>\{.*?\} to \{.*?\}) (?:without|efficiently)[^\n]*?"
        r"(?:(?:HLO operation:? (?P<instruction>%\S+) = (?P<shape>\w+\[[\d,]*\]))[^\n]*|(?=\. ))"
    ),
    WarningKind.ARGUMENTS: _pattern(
        r"The byte size of input/output arguments \((?P<needed>\d+)\) exceeds the base limit "
        r"\((?P<limit>\d+)\)"
    ),
}
_SOURCE = re.compile(r'source_file="(?P<file>[^"]*)" source_line=(?P<line>\d+)')
_MAX_QUOTE = 160


def find_warnings(text: str) -> Iterator[MemoryWarning]:
    """Every warning in `text`; equal ones are one with a count."""
    for kind, pattern in _WARNINGS.items():
        by_text: dict[str, list[re.Match[str]]] = {}
        for match in pattern.finditer(text):
            by_text.setdefault(" ".join(match[0].split()), []).append(match)
        for message, matches in by_text.items():
            yield _warning(kind, message, matches)


def _warning(kind: WarningKind, message: str, matches: list[re.Match[str]]) -> MemoryWarning:
    groups = matches[-1].groupdict()
    shape, source = groups.get("shape"), _SOURCE.search(message)
    needed, limit, original = (groups.get(name) for name in ("needed", "limit", "original"))
    return MemoryWarning(
        kind=kind,
        start=matches[0].start(),
        count=len(matches),
        message=message.partition(" = ")[0] if len(message) > _MAX_QUOTE else message,
        needed_bytes=shape_of(shape).size_bytes if shape else int(needed) if needed else None,
        limit_bytes=int(limit) if limit else None,
        original_bytes=int(original) if original else None,
        shape=shape,
        instruction=groups.get("instruction"),
        sharding=groups.get("sharding"),
        source=f"{source['file']}:{source['line']}" if source else None,
    )
