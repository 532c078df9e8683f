"""Why an allocation on a GPU failed, from the allocator's dump and the text around the message."""

import re

from xlapipe.failures.allocator_dump import AllocatorDump
from xlapipe.failures.failure import FailureKind
from xlapipe.failures.sizes import LoggedSize

_TRACEBACK = "Traceback (most recent call last)"
# Text between the start of an error and its memory message: an HLO instruction can be this long.
_NEAR = 4000
_AUTOTUNING = re.compile(
    r"[Aa]utotun(?:ing|er)|AutotunerCompileUtil|algorithm_picker|gpu_profiler"
    r"|Failed to determine best cudnn convolution algorithm|GetBestAlgorithm"
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
    r"failed to allocate \S+ \((?P<size>\d+) bytes\) from device: [^\n]*OUT_OF_MEMORY"
)


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
      dump: of the same failure, if the log has one.
    """
    near = text[max(0, start - _NEAR) : start + 300]
    frames = _frames(text, start)
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
    return FailureKind.EXECUTION, "an allocation on the device failed"


def _by_allocator(
    before: str, dump: AllocatorDump, requested: LoggedSize
) -> tuple[FailureKind, str] | None:
    """Fragmentation or memory that another process holds, as far as the figures prove it."""
    held_bytes, wanted = dump.held_bytes, requested.size_bytes + requested.slack_bytes
    if held_bytes is None:
        return None
    if dump.device_free_bytes is not None and dump.device_total_bytes is not None:
        others_bytes = dump.device_total_bytes - dump.device_free_bytes - held_bytes
        if wanted <= dump.device_total_bytes - held_bytes and others_bytes > wanted // 8:
            return (
                FailureKind.OTHER_PROCESS,
                f"{others_bytes:,} bytes of the device are in use outside this allocator",
            )
        return None
    pool_bytes = dump.pool_bytes
    if pool_bytes is None:
        return None
    free_bytes = pool_bytes - held_bytes
    largest = dump.largest_free_bytes
    if free_bytes >= wanted and (largest is None or largest < wanted):
        return (
            FailureKind.FRAGMENTATION,
            f"{free_bytes:,} bytes of the pool are free, but not in one piece"
            + (f": the largest has {largest:,}" if largest else ""),
        )
    if dump.limit_bytes is not None and held_bytes + wanted <= dump.limit_bytes:
        refused = _REFUSED.search(before)
        if refused is not None or pool_bytes < dump.limit_bytes - 256:
            return (
                FailureKind.OTHER_PROCESS,
                f"the allocator may use {dump.limit_bytes:,} bytes, but the device gave it only "
                f"{pool_bytes:,}: the rest of the device is in use outside this allocator",
            )
    return None


def _frames(text: str, start: int) -> str:
    """The traceback that ends with the message; empty if there is none."""
    begin = text.rfind(_TRACEBACK, max(0, start - 60_000), start)
    if begin < 0:
        return ""
    # jax raises its filtered exception from the original one, whose traceback has all frames.
    chained = text.rfind(_TRACEBACK, max(0, begin - 60_000), begin)
    if chained >= 0 and "direct cause" in text[chained:begin]:
        begin = chained
    return text[begin:start]
