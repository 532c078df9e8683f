"""From the text of a log to its memory failures."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from xlapipe.report.failures.allocator_dump import AllocatorDump, read_allocator_dumps
from xlapipe.report.failures.cause import cause_on_gpu, traceback_before
from xlapipe.report.failures.failure import (
    FailureKind,
    Hardware,
    Memory,
    MemoryFailure,
    read_buffers,
    read_parts,
)
from xlapipe.report.failures.job_log import read_job_log
from xlapipe.report.failures.messages import HOST, Message, Source, find_messages
from xlapipe.report.failures.sizes import ROUNDED
from xlapipe.report.failures.traceback_call import called_by

_EXECUTABLE = re.compile(
    r"\[executable_name='(?P<name>[^']*)'\]|HLO module: (?P<module>[\w.-]*\w)"
    r"|XlaModule:#hlo_module=(?P<annotated>[\w.-]*\w)"
)
_TRACED = re.compile(r'op_name="jit\((?P<name>\w+)\)/')
_EXCEPTION = re.compile(r"\b\w*(?:Error|Exception|OutOfResources): [^\n]{0,400}\n?[^\n]{0,400}$")
# Characters of a line before a message that are searched for the exception.
_MAX_LINE = 1000
_LIMIT = re.compile(
    r"XLA backend (?:allocating|will use up to) (?:\S+ \()?(?P<size>\d+) bytes\)? on device "
    r"(?P<ordinal>\d+)"
)
_DEVICE_PREFIX = re.compile(r"\[(?P<ordinal>\d+)\] $")
_UNNAMED = (
    "a library could not create its handle or plan; the log does not state why, and on an H200 "
    "without free memory these messages were printed"
)
_FREE = re.compile(r"Memory usage: (?P<free>\d+) bytes free, \d+ bytes total")
# More digits than any size has; Python does not convert thousands of them.
_NO_SIZE = re.compile(r"\d{25,}")
_NEAR = 4000
# A handle of cuDNN takes less.
_ENOUGH = 2**30
# Lines between a library's own warning and the exception: a traceback, and XLA's stack trace.
_LIBRARY_LINES = 80
# XLA's own lists follow its message; a message without a successor ends here at the latest.
_MAX_MESSAGE = 200_000

_HOST_FULL = "the operating system had no more memory of the host"
# Why Linux ended a process, by what it prints.
_CONSTRAINTS = {
    "MEMCG": "the limit of a control group, e.g. of a container or a Slurm job, was reached",
    "CPUSET": "the NUMA nodes that the process may use were full",
    "MEMORY_POLICY": "the NUMA nodes that the process may use were full",
}
_CONSTRAINT = re.compile(r"constraint=CONSTRAINT_(?P<name>[A-Z_]+)")

_KINDS = {
    Source.COMPILER: (FailureKind.COMPILE, "the compiler reports it"),
    Source.LIBRARY: (
        FailureKind.LIBRARY,
        "the memory is taken from the device directly, outside XLA's allocator",
    ),
    Source.HOST_ARRAY: (FailureKind.ARGUMENT, "numpy allocates this array in the host's memory"),
    Source.CONTEXT: (
        FailureKind.OTHER_PROCESS,
        "the process could not even create its CUDA context",
    ),
}


def read_failures(text: str) -> tuple[MemoryFailure, ...]:
    """The memory failures that a log contains, in order; empty if it contains none.

    A failure that the run survived, e.g. an algorithm that autotuning left out, is not in it.
    """
    log = read_job_log(_NO_SIZE.sub("?", text))
    found, dumps = find_messages(log.text), read_allocator_dumps(log.text)
    messages = _without_repeats(log.text, [*found, *_unreported(dumps, found, log.text)])
    line_starts = [0, *(match.end() for match in re.finditer("\n", log.text))]
    failures = []
    for message, following in zip_longest(messages, messages[1:]):
        end = message.start + _MAX_MESSAGE
        end = end if following is None else min(end, following.start)
        line = log.numbers[bisect_right(line_starts, message.start) - 1]
        failures.append(_failure(log.text, message, log.text[message.start : end], dumps, line))
    return tuple(sorted(failures, key=lambda failure: failure.line))


def last_failure(failures: Sequence[MemoryFailure]) -> MemoryFailure | None:
    """The failure that ended the run: of the last exception, else of the last message."""
    raised = [failure for failure in failures if failure.raised]
    return next(reversed(raised or failures), None)


def _is_raised(text: str, message: Message) -> bool:
    """Whether the message is in the line of an exception, or in the line after it."""
    before = text[max(0, message.start - _MAX_LINE) : message.start]
    return _EXCEPTION.search("\n".join(before.split("\n")[-2:])) is not None


def _unreported(
    dumps: Sequence[AllocatorDump], messages: Sequence[Message], text: str
) -> Iterator[Message]:
    """Dumps of an allocator without a later message, e.g. at the end of a log that was cut off."""
    last = max((m.start for m in messages if m.source is Source.POOL), default=-1)
    for dump in dumps:
        if not dump.tolerated and last <= dump.start:
            line = text[dump.start :].split("\n", 1)[0]
            yield Message(
                source=Source.POOL,
                start=dump.start,
                end=dump.start + len(line),
                text=" ".join(line.split()),
                requested=dump.requested,
                place=dump.device,
            )


def _without_repeats(text: str, messages: Sequence[Message]) -> list[Message]:
    """One message of each run of equal ones: a chained traceback repeats its exception.

    A sentence inside the report of another one, e.g. of a status that wraps it, is its repeat too.
    The last of them is kept, with the figures that only the others have.
    """
    kept: list[Message] = []
    for message in sorted(messages, key=lambda message: message.start):
        if kept and _repeats(text, kept[-1], message):
            kept[-1] = _joined(kept[-1], message)
        elif message.source is not Source.PERHAPS_LIBRARY:
            kept.append(message)
    return kept


def _joined(earlier: Message, later: Message) -> Message:
    if later.is_usage:
        return earlier  # whose report the table is part of
    if later.source not in (Source.LIBRARY, Source.PERHAPS_LIBRARY):
        return later
    return replace(
        later,
        source=Source.LIBRARY,
        requested=later.requested or earlier.requested,
        place=later.place or earlier.place,
        names_memory=later.names_memory or later.source is Source.PERHAPS_LIBRARY,
    )


def _repeats(text: str, message: Message, following: Message) -> bool:
    between = text[message.end : following.start]
    if message.text == following.text:
        return "Traceback" in between or "direct cause" in between or between.count("\n") <= 40
    # A library's warning is followed by XLA's report of the same failure, after a stack trace.
    if following.is_usage and message.source is Source.COMPILER:
        return following.memory is message.memory or message.requested == following.requested
    if message.source is following.source is Source.HOST:
        return between.count("\n") <= _LIBRARY_LINES
    return (
        message.source is Source.LIBRARY
        and following.source in (Source.LIBRARY, Source.PERHAPS_LIBRARY)
        and between.count("\n") <= _LIBRARY_LINES
    ) or (message.source is following.source is Source.COMPILER and between.count("\n") <= 3)


def _failure(
    text: str,
    message: Message,
    report: str,
    dumps: Sequence[AllocatorDump],
    line: int,
) -> MemoryFailure:
    executable_name = message.executable_name or _executable_name(report)
    dump = _dump_of(message, dumps) if message.source is Source.POOL else None
    kind, reason = _kind(text, message, executable_name, dump)
    device = message.place or _device(text, message, dump)
    exact = dump is not None and message.requested is not None and message.requested.slack_bytes
    requested = dump.requested if dump is not None and exact else message.requested
    memory = Memory.HOST if device == HOST else message.memory
    return MemoryFailure(
        kind=kind,
        line=line,
        message=message.text,
        reason=reason,
        requested=requested,
        executable_name=executable_name,
        device=device,
        memory=memory,
        hardware=_hardware(message, device, dump),
        limit_bytes=_limit_bytes(text, message, device, dump),
        held_bytes=dump.held_bytes if dump is not None else None,
        free=message.free or (dump.free_in_pool if dump is not None else None),
        largest_free=message.largest_free or (dump.largest_free if dump is not None else None),
        call=called_by(traceback_before(text, message.start)),
        parts=read_parts(report),
        buffers=read_buffers(report),
        allocator=dump,
        raised=_is_raised(text, message),
    )


def _kind(
    text: str, message: Message, executable_name: str | None, dump: AllocatorDump | None
) -> tuple[FailureKind, str]:
    if message.source is Source.LIBRARY and not message.names_memory:
        return FailureKind.LIBRARY, _unnamed_reason(text, message)
    if message.source is Source.HOST:
        return FailureKind.EXECUTION, _host_reason(text, message)
    if message.source in _KINDS:
        return _KINDS[message.source]
    if message.source is Source.POOL:
        return cause_on_gpu(
            text,
            message.start,
            requested=message.requested,
            executable_name=executable_name,
            dump=dump,
        )
    requested, free = message.requested, message.free
    if requested is not None and free is not None and free.size_bytes >= requested.most_bytes:
        return FailureKind.FRAGMENTATION, "more bytes are free, but not in one piece"
    if message.source is Source.LOADING:
        return FailureKind.EXECUTION, "the runtime reserves a program's memory when it loads it"
    return FailureKind.ARGUMENT, "the runtime allocates this buffer for an array"


def _host_reason(text: str, message: Message) -> str:
    """Which limit of the host was reached, as far as Linux prints it."""
    near = text[max(0, message.start - _NEAR) : message.end + _NEAR]
    constraint = _CONSTRAINT.search(near)
    if constraint is None:
        return _HOST_FULL
    return _CONSTRAINTS.get(constraint["name"], _HOST_FULL)


def _unnamed_reason(text: str, message: Message) -> str:
    """Why memory may be the reason, or may not be: cuDNN's loader prints what the device has."""
    free = _FREE.search(text, max(0, message.start - _NEAR), message.end + _NEAR)
    if free is None:
        return _UNNAMED
    free_bytes = int(free["free"])
    if free_bytes < _ENOUGH:
        return f"{_UNNAMED}; {free_bytes:,} bytes of the device were free"
    return (
        f"a library could not create its handle, and {free_bytes:,} bytes of the device were free: "
        "memory is not the reason then, but for example another version of cuDNN than jaxlib needs"
    )


def _executable_name(report: str) -> str | None:
    match = _EXECUTABLE.search(report)
    if match is not None:
        return match[match.lastgroup or 0]
    traced = _TRACED.search(report)
    return f"jit_{traced['name']}" if traced is not None else None


def _dump_of(message: Message, dumps: Sequence[AllocatorDump]) -> AllocatorDump | None:
    """The last dump up to the message that is about the same size and device."""
    for dump in reversed(dumps):
        if dump.start > message.start or message.requested is None:
            continue
        slack_bytes = message.requested.slack_bytes + dump.requested.slack_bytes + 256
        near = abs(dump.requested.size_bytes - message.requested.size_bytes) <= slack_bytes
        if near and (message.place is None or dump.device in (None, message.place)):
            return dump
    return None


def _hardware(message: Message, device: str | None, dump: AllocatorDump | None) -> Hardware | None:
    """What ran out, by the message, the allocator, or the device's name."""
    if message.hardware is None and (dump is not None or (device or "").startswith("GPU_")):
        return Hardware.GPU
    return message.hardware


def _device(text: str, message: Message, dump: AllocatorDump | None) -> str | None:
    if dump is not None:
        return dump.device
    prefix = _DEVICE_PREFIX.search(text[max(0, message.start - 12) : message.start])
    return f"GPU_{prefix['ordinal']}" if prefix is not None else None


def _limit_bytes(
    text: str, message: Message, device: str | None, dump: AllocatorDump | None
) -> int | None:
    if message.limit_bytes is not None:
        return message.limit_bytes
    printed = dump.limit_bytes if dump is not None else None
    if message.source is not Source.POOL or device is None:
        return printed
    for match in _LIMIT.finditer(text):
        size_bytes = int(match["size"])
        # The allocator's own dump rounds to two decimals; another number is another limit.
        if f"GPU_{match['ordinal']}" == device and (
            printed is None or abs(size_bytes - printed) <= printed * ROUNDED
        ):
            return size_bytes
    return printed
