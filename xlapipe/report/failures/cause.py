"""Why an allocation on a GPU failed, from the allocator's dump and the text around the message."""

import re

from xlapipe.report.failures.allocator_dump import AllocatorDump
from xlapipe.report.failures.failure import FailureKind
from xlapipe.report.failures.sizes import LoggedSize

_TRACEBACK = "Traceback (most recent call last)"
# Text between the start of an error and its memory message: an HLO instruction can be this long.
_NEAR = 4000
_AUTOTUNING = re.compile(
    r"[Aa]utotun(?:ing|er)|AutotunerCompileUtil|algorithm_picker|gpu_profiler"
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


def cause_on_gpu(
    text: str,
    start: int,
    *,
    requested: LoggedSize | None,
    executable_name: str | None,
    dump: AllocatorDump | None,
) -> tuple[FailureKind, str]:
    """The kind of a failed allocation, and the reason for it.

    Args:
      text: the log.
      start: offset of the message.
      dump: dump of the same failure, if the log has one.
    """
    near = text[max(0, start - _NEAR) : start + 300]
    frames = traceback_before(text, start)
    match = _AUTOTUNING.search(near[max(0, near.rfind(_TRACEBACK)) :])
    if match is not None:
        return FailureKind.AUTOTUNING, f"the log names {match[0]!r} beside the failure"
    if executable_name is None and _COMPILING_FRAME.search(frames):
        return (
            FailureKind.AUTOTUNING,
            "it failed while XLA compiled, which allocates device memory only to time kernels",
        )
    if dump is not None and requested is not None:
        by_allocator = _by_allocator(text[:start], dump, requested)
        if by_allocator is not None:
            return by_allocator
    return _by_caller(near, frames, executable_name, text)


def _by_caller(
    near: str, frames: str, executable_name: str | None, text: str
) -> tuple[FailureKind, str]:
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


def _by_allocator(
    before: str, dump: AllocatorDump, requested: LoggedSize
) -> tuple[FailureKind, str] | None:
    """Fragmentation or memory that another process holds, as far as the figures prove it."""
    held_bytes, wanted = dump.held_bytes, requested.most_bytes
    if dump.device_free_bytes is not None and dump.device_total_bytes is not None:
        return _by_device(dump, wanted)
    if dump.name.endswith("_bfc") and _device_refused(before, dump.requested.size_bytes):
        return (
            FailureKind.OTHER_PROCESS,
            "the allocator had not reached its limit, but the device refused it the memory: the "
            "rest of the device is in use outside this allocator",
        )
    if held_bytes is None or dump.pool_bytes is None:
        return _by_picture(dump, wanted)
    free_bytes, largest = dump.pool_bytes - held_bytes, dump.largest_free
    if free_bytes >= wanted and (largest is None or largest.size_bytes < wanted):
        return (
            FailureKind.FRAGMENTATION,
            f"{free_bytes:,} bytes of the pool are free, but not in one piece"
            + (f": the largest has {largest.size_bytes:,}" if largest is not None else ""),
        )
    limit_bytes = dump.limit_bytes
    if limit_bytes is not None and held_bytes + wanted <= limit_bytes - 256 > dump.pool_bytes:
        return (
            FailureKind.OTHER_PROCESS,
            f"the allocator may use {limit_bytes:,} bytes, but the device gave it only "
            f"{dump.pool_bytes:,}: the rest of the device is in use outside this allocator",
        )
    return None


def _by_device(dump: AllocatorDump, wanted: int) -> tuple[FailureKind, str] | None:
    held_bytes = dump.held_bytes or 0
    total_bytes, free_bytes = dump.device_total_bytes or 0, dump.device_free_bytes or 0
    others_bytes = total_bytes - free_bytes - held_bytes
    if wanted <= total_bytes - held_bytes and others_bytes > wanted // 8:
        return (
            FailureKind.OTHER_PROCESS,
            f"{others_bytes:,} bytes of the device are in use outside this allocator",
        )
    return None


def _device_refused(before: str, requested_bytes: int) -> bool:
    """Whether the device refused about the request itself, and not only a larger pool."""
    sizes = (int(match["old"] or match["new"]) for match in _REFUSED.finditer(before))
    return any(requested_bytes <= size <= requested_bytes * _LAST_TRY for size in sizes)


def _by_picture(dump: AllocatorDump, wanted: int) -> tuple[FailureKind, str] | None:
    """Fragmentation by the picture of the pool, the only part of the dump that is always logged."""
    pieces = dump.free_pieces
    free_share = sum(pieces)
    if len(pieces) < _PIECES or free_share < _FREE_SHARE or 2 * pieces[0] > free_share:
        return None
    if dump.limit_bytes is not None and free_share * dump.limit_bytes < 100 * wanted:
        return None
    return (
        FailureKind.FRAGMENTATION,
        f"{free_share} % of the pool are free in {len(pieces)} pieces, the largest {pieces[0]} %",
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
