"""The sentences with which XLA reports that memory ran out.

Sources of the texts, jaxlib 0.4 to 0.12:

- GPU: xla/stream_executor/integrations/tf_allocator_adapter.cc (`MemoryAllocationError`),
  xla/stream_executor/stream_executor_address_allocator.cc, xla/service/gpu.
- TPU: libtpu's compiler, and docs/errors of openxla/xla (E1000, E1001).

A sentence may be folded over several lines, so every space matches any white space.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.report.failures.sizes import SIZE_WITH_UNIT, LoggedSize, parse_size

HOST = "host"
# A kernel's own memory: a GPU's shared memory, spaces of a TPU's memory.
_ON_CHIP = re.compile(r"(?i)\b(?:[vsc]mem|sflag|shared memory)\b")
# A number without a unit is bytes.
_SIZE = rf"(?:{SIZE_WITH_UNIT}|\d+(?!\w|\.\d))"
SUPPORTED = (
    "RESOURCE_EXHAUSTED of XLA's allocator on a GPU, the dump of that allocator, and a compile "
    "that needs more HBM, VMEM or shared memory than there is"
)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One sentence about a request that failed.

    Attributes:
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
