"""Readers of what a run printed when it ran out of memory.

They read only text: neither jax nor a dump is needed. A figure that the log does not contain is
None.
"""

from xlapipe.report.failures.allocator_dump import AllocatorDump, ChunkGroup
from xlapipe.report.failures.failure import (
    Call,
    FailureKind,
    Hardware,
    LoggedBuffer,
    Memory,
    MemoryFailure,
)
from xlapipe.report.failures.read_log import last_failure, read_failures

__all__ = [
    "AllocatorDump",
    "Call",
    "ChunkGroup",
    "FailureKind",
    "Hardware",
    "LoggedBuffer",
    "Memory",
    "MemoryFailure",
    "last_failure",
    "read_failures",
]
