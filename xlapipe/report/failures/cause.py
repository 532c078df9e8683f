"""Why an allocation failed, from the allocator's dump and the text around the message."""

import re

from xlapipe.report.failures.allocator_dump import AllocatorDump
from xlapipe.report.failures.failure import FailureKind, LoggedInstruction
from xlapipe.report.failures.messages import Message
from xlapipe.report.failures.sizes import LoggedSize

_TRACEBACK = "Traceback (most recent call last)"
# Text between the start of an error and its memory message: an HLO instruction can be this long.
_NEAR = 4000
_AUTOTUNING = re.compile(
    r"[Aa]utotun(?:ing|er)|algorithm_picker|gpu_profiler"
    r"|Failed to determine best cudnn convolution algorithm|GetBestAlgorithm"
    r"|All configs failed during profiling|config_(?:assigner|selector)\.cc"
)
_COMPILING_FRAME = re.compile(r"\bin (?:backend_compile\w*|_?compile_and_write_cache)\b")
_TRANSFER = re.compile(
    r"\bin (?:_?batched_device_put\w*|_?device_put\w*|shard_args|_shard_\w*array\w*|"
    r"shard_device_array|make_array_from_\w+)\b|BufferFromHost|CopyRawToDevice"
)
_EXECUTING = re.compile(
    r"Execution of replica \d+ failed|BufferAssignment OOM Debugging|ExecuteReplicated"
    r"|\bin (?:_execute_compiled|_pjit_call_impl\w*|_python_pjit_helper)\b|\bcompiled\.execute\b"
)
_REFUSED = re.compile(
    r"(?:failed to allocate \S+ \((?P<old>\d+) bytes\) from device: "
    r"|Failed to allocate device memory of \S+ \((?P<new>\d+) bytes\): )[^\n]*OUT_OF_MEMORY"
)
# The BFC allocator asks the device for 0.9 times as much until it asks for less than the request.
_LAST_TRY = 1 / 0.9 + 0.01
# A pool whose picture has this many free pieces, of this share in hundredths.
_PIECES, _FREE_SHARE = 3, 25
# In `Failed to determine best cudnn convolution algorithm for:`, `Autotuning failed for HLO:`.
_INSTRUCTION = re.compile(
    r"\bfor(?: HLO)?:\s*(?P<name>%[\w.-]+) = \(?(?P<shape>\w+\[[\d,]*\])(?P<rest>[^\n]*)"
)
_OP_NAME = re.compile(r'op_name="(?P<value>[^"]*)"')
_SOURCE = re.compile(r'source_file="(?P<file>[^"]*)"\s+source_line=(?P<line>\d+)')

Cause = tuple[FailureKind, str]


def kind_and_reason(
    text: str,
    message: Message,
    executable_name: str | None,
    dump: AllocatorDump | None,
    requested: LoggedSize | None,
    limit_bytes: int | None,
) -> Cause:
    """The kind of a failure, and the part of the log that shows it."""
    if message.by_compiler:
        return FailureKind.COMPILE, "the compiler reports it"
    near = text[max(0, message.start - _NEAR) : message.start + 300]
    frames = traceback_before(text, message.start)
    match = _AUTOTUNING.search(near[max(0, near.rfind(_TRACEBACK)) :])
    if match is not None:
        return FailureKind.AUTOTUNING, f"the log names {match[0]!r} beside the failure"
    if executable_name is None and _COMPILING_FRAME.search(frames):
        return (
            FailureKind.AUTOTUNING,
            "it failed while XLA compiled, which allocates device memory only to time kernels",
        )
    if dump is not None and requested is not None:
        too_large = limit_bytes is not None and requested.size_bytes > limit_bytes
        by_allocator = None if too_large else _by_allocator(text, dump, requested.most_bytes)
        if by_allocator is not None:
            return by_allocator
    return _by_caller(near, frames, executable_name, text)


def _by_caller(near: str, frames: str, executable_name: str | None, text: str) -> Cause:
    if executable_name is not None:
        return FailureKind.EXECUTION, f"the message names the executable {executable_name}"
    match = _TRANSFER.search(frames)
    if match is not None and not _EXECUTING.search(near[-600:]):
        return FailureKind.ARGUMENT, f"it failed in {match[0].removeprefix('in ')}"
    if _EXECUTING.search(near) or _EXECUTING.search(frames):
        return FailureKind.EXECUTION, "it failed while an executable started"
    if "tf-allocator-allocation-error" in near and "executable_name" not in text:
        return (
            FailureKind.ARGUMENT,
            "the message names no executable, as for an array that is moved to the device",
        )
    return FailureKind.EXECUTION, "an allocation failed"


def _by_allocator(text: str, dump: AllocatorDump, requested_bytes: int) -> Cause | None:
    """Fragmentation or memory that another process holds, as far as the figures prove it."""
    refused = (int(match["old"] or match["new"]) for match in _REFUSED.finditer(text))
    least = dump.requested.size_bytes
    if any(least <= size <= least * _LAST_TRY for size in refused):
        return (
            FailureKind.OTHER_PROCESS,
            "the allocator had not reached its limit, but the device refused it the memory: the "
            "rest of the device is in use outside this allocator",
        )
    held_bytes, pool_bytes, limit_bytes = dump.held_bytes, dump.pool_bytes, dump.limit_bytes
    if held_bytes is None or pool_bytes is None:
        return _by_picture(dump, requested_bytes)
    free_bytes, largest = pool_bytes - held_bytes, dump.largest_free
    if free_bytes >= requested_bytes and (largest is None or largest.size_bytes < requested_bytes):
        return (
            FailureKind.FRAGMENTATION,
            f"{free_bytes:,} bytes of the pool are free, but not in one piece"
            + (f": the largest has {largest.size_bytes:,}" if largest is not None else ""),
        )
    if limit_bytes is not None and held_bytes + requested_bytes <= limit_bytes - 256 > pool_bytes:
        return (
            FailureKind.OTHER_PROCESS,
            f"the allocator may use {limit_bytes:,} bytes, but the device gave it only "
            f"{pool_bytes:,}: the rest of the device is in use outside this allocator",
        )
    return None


def _by_picture(dump: AllocatorDump, requested_bytes: int) -> Cause | None:
    """Fragmentation by the picture of the pool, the only part of the dump that is always logged."""
    pieces = dump.free_pieces
    free_share = sum(pieces)
    if len(pieces) < _PIECES or free_share < _FREE_SHARE or 2 * pieces[0] > free_share:
        return None
    if dump.limit_bytes is not None and free_share * dump.limit_bytes < 100 * requested_bytes:
        return None
    return (
        FailureKind.FRAGMENTATION,
        f"{free_share} % of the pool are free in {len(pieces)} pieces, the largest {pieces[0]} %",
    )


def timed_instruction(text: str, start: int) -> LoggedInstruction | None:
    """The HLO instruction that XLA was timing when a message was printed."""
    matches = list(_INSTRUCTION.finditer(text, max(0, start - 4 * _NEAR), start))
    if not matches:
        return None
    match = matches[-1]
    op_name, source = _OP_NAME.search(match["rest"]), _SOURCE.search(match["rest"])
    return LoggedInstruction(
        match["name"],
        match["shape"],
        f"{source['file']}:{source['line']}" if source is not None else None,
        op_name["value"] if op_name is not None else None,
    )


def traceback_before(text: str, start: int) -> str:
    """The traceback that ends with the message; empty if absent."""
    begin = text.rfind(_TRACEBACK, max(0, start - 60_000), start)
    if begin < 0:
        return ""
    # jax raises its filtered exception from the original one, whose traceback has all frames.
    chained = text.rfind(_TRACEBACK, max(0, begin - 60_000), begin)
    if chained >= 0 and "direct cause" in text[chained:begin]:
        begin = chained
    return text[begin:start]
