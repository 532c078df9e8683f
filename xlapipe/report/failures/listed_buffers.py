"""Lists of buffers and totals that XLA appends to an error.

Sources of the texts: `BufferAssignment::Stats::ToString` and `BufferAssignment::ToVerboseString` in
xla/service/buffer_assignment.cc for GPUs; libtpu for TPUs (`Largest program allocations in hbm`).
"""

import re

from xlapipe.report.failures.failure import LoggedBuffer
from xlapipe.report.failures.sizes import SIZE, parse_size

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
