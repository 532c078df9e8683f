"""The sentences with which XLA, libtpu, CUDA's libraries and NCCL report that memory ran out.

Sources of the texts, jaxlib 0.8 to 0.12 unless noted:

- GPU: xla/stream_executor/integrations/tf_allocator_adapter.cc (`MemoryAllocationError`),
  xla/stream_executor/stream_executor_address_allocator.cc, cuda_executor.cc, cuda_platform.cc,
  xla/service/gpu/runtime (command buffers), xla/backends/gpu/collectives (NCCL).
- TPU: libtpu, and docs/errors of openxla/xla (E0100, E0101, E1000, E1001).
- NCCL: src/include/alloc.h and checks.h.
- Shared memory of a GPU's kernel: Triton, jax's Mosaic GPU, ptxas.
- Host: numpy, PyTorch in the same process, Linux, Slurm, Kubernetes, Ray.

A sentence may be folded over several lines, so every space matches any white space.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from xlapipe.failures.sizes import SIZE_WITH_UNIT, LoggedSize, parse_size


class Source(Enum):
    """Which part of the run reports the failure."""

    POOL = auto()  # the allocator of a GPU
    TRANSFER = auto()  # a buffer that a TPU's runtime allocates
    LOADING = auto()  # a program that a TPU's runtime loads
    COMPILER = auto()
    LIBRARY = auto()  # memory that a library or the driver takes outside the allocator
    PERHAPS_LIBRARY = auto()  # the same, only if another message before it names memory
    HOST = auto()  # the host's memory, which the operating system manages
    HOST_ARRAY = auto()  # an array of numpy
    CONTEXT = auto()  # CUDA's context, the first thing that a process allocates


@dataclass(frozen=True, kw_only=True)
class Message:
    """One sentence.

    Attributes:
      start, end: offsets in the log.
      free_bytes: what the device had left, if the sentence contains it.
      place: the memory it is about: a device, or `host`.
      names_memory: whether it, or a message that it repeats, states that memory ran out.
    """

    source: Source
    start: int
    end: int
    text: str
    requested: LoggedSize | None = None
    limit_bytes: int | None = None
    free_bytes: int | None = None
    executable_name: str | None = None
    place: str | None = None
    names_memory: bool = True


# CUDA's error 2 is CUDA_ERROR_OUT_OF_MEMORY.
_NAMES_MEMORY = re.compile(r"memory|MEMORY|alloc|ALLOC|\berr 2\b")
_HOST = "host"


def _pattern(text: str) -> re.Pattern[str]:
    sized = re.sub(r"(?<!\?P)<(\w+)>", lambda match: f"(?P<{match[1]}>{SIZE_WITH_UNIT})", text)
    return re.compile(sized.replace(r" ", r"\s+"))


# By source; each sentence ends with a comma.
_SENTENCES = {
    Source.POOL: (
        r"Out of memory while trying to allocate(?: <requested>)?"
        r"(?: with allocator (?P<allocator>\w+?)(?: on device (?P<ordinal>\d+))?\b)?",
        r"Out of (?P<host>host) memory while trying to allocate <requested>",
        r"Out of memory allocating (?P<requested>\d+) bytes",
        r"Failed to allocate (?P<requested>\d+) bytes for new constant",
        r"Failed to allocate \S+ \((?P<requested>\d+) bytes\) of (?:pinned )?"
        r"(?P<host>host) memory",
        r"Allocating (?P<requested>\d+) bytes exceeds the memory limit of "
        r"(?P<limit>\d+) bytes",
        r"Failed to allocate request for (?:\S+ )?\((?P<requested>\d+)B\) "
        r"on device ordinal (?P<ordinal>\d+)",
    ),
    Source.COMPILER: (
        r"Ran out of memory in memory space \w+(?:(?: while[\s\S]{0,4000}?)?\. "
        r"Used <requested> of <limit> \w+\. Exceeded \w+ capacity by \S+\.)?",
        r"Scoped allocation with size <requested> and limit <limit> exceeded scoped \w+ limit",
        r"Ran out of memory on HBM, the total memory required for HLO temporaries "
        r"\(<requested>\) exceeds available HBM \(<limit>\)",
        r"Aborting compilation early because it's unlikely to have enough (?:device )?memory\. "
        r"Requires <requested>, has <limit> available",
        r"TPU TensorCore Hbm usage: <requested>, SparseCore Hbm usage:? <more>, "
        r"exceeding available bytes: <limit>",
        r"Allocation \(size=(?P<requested>\d+)\) would exceed memory \(size=(?P<limit>\d+)\)",
        r"(?:Shared|Tensor) memory size limit exceeded: requested (?P<requested>\d+), "
        r"available: (?P<limit>\d+)",
        r"out of resource: (?:shared|tensor) memory, Required: (?P<requested>\d+), "
        r"Hardware limit: (?P<limit>\d+)",
        r"Mosaic GPU kernel exceeds available shared memory: smem_bytes=(?P<requested>\d+) > "
        r"(?:max_smem_bytes=)?(?P<limit>\d+)",
        r"(?P<requested>\d+) bytes of shared memory, which exceeds the device limit of "
        r"(?P<limit>\d+)",
        r"uses too much shared data \(0x(?P<requested_hex>[0-9a-f]+) bytes, "
        r"0x(?P<limit_hex>[0-9a-f]+) max\)",
    ),
    Source.LOADING: (
        r"(?:Error loading program '(?P<program>[^']*)': )?Attempting to reserve <requested> "
        r"at the bottom of memory\. That was not possible\. There are <free> free, \S+ "
        r"reserved, and \S+ reservable\.",
    ),
    Source.TRANSFER: (
        r"Could not allocate (?P<requested>\d+) bytes in memory (?P<core>\w+); \d+ bytes "
        r"allocatable, (?P<free>\d+) bytes available",
        r"(?:Error allocating device buffer: )?Attempting to allocate <requested>\. That was "
        r"not possible\. There are <free> free\.(?:; \((?P<core>\w+)\))?",
    ),
    Source.LIBRARY: (
        r"Failed to load in-memory CUBIN[^\n]*?:? (?:\n )?CUDA_ERROR_OUT_OF_MEMORY",
        r"Underlying backend ran out of memory trying to instantiate command buffer",
        r"NCCL operation \w+[^\n]{0,400}? failed: [^\n]{0,600}?"
        r"(?:out of memory|Failed to CUDA \w+(?: async)? (?P<requested>\d+) bytes)",
        r"(?:\[(?P<ordinal>\d+)\] )?Failed to allocate collective memory of \S+ "
        r"\((?P<requested>\d+) bytes\): [^\n]{0,200}?CUDA_ERROR_OUT_OF_MEMORY",
        r"Failed to allocate [\w ]{1,40} for "
        r"(?:ragged-)?(?:all|reduce|collective)-\w+(?:-\w+)?",
        r"NCCL WARN (?:Failed to CUDA \w+(?: async)? (?P<requested>\d+) bytes"
        r"|[^\n]*Cuda failure[^\n]*out of memory)",
        r"\b(?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CUFFT)_(?:STATUS_)?ALLOC_FAILED\b",
        r"(?:[Ff]ailed to create|Could not create) (?:cublas|cudnn|cublasLt) handle: "
        r"(?:(?:CUBLAS|CUDNN)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|ALLOC_FAILED)"
        r"|the resource allocation failed|cublas error)",
        r"Failed to initialize BLAS(?:LT)? support",
        r"DNN library initialization failed",
        r"err 2 != CUDA_SUCCESS[\s\S]{0,300}?CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER",
        r"Failed to (?:make|create) cuFFT batched plan",
        r"operation (?:gpu|cu)\w+Create\w*\(&handle\) failed: \w+ "
        r"(?:internal error|not initialized|alloc(?:ation)? failed)",
        r"(?:INTERNAL|RESOURCE_EXHAUSTED): CUDA error: [A-Z][a-z][^\n]{0,200}?"
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"Failed to (?!load|allocate|create stream executor)\w+ [^\n]{0,200}?: "
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"CUDA out of memory\. Tried to allocate <requested>\.?(?: \(?GPU (?P<ordinal>\d+))?",
    ),
    Source.PERHAPS_LIBRARY: (r"NCCL operation \w+[^\n]{0,400}? failed: unhandled cuda error",),
    Source.HOST_ARRAY: (r"Unable to allocate <requested> for an array with shape",),
    Source.HOST: (
        r"Detected \d+ oom[_-]kill event|Out of memory: Killed process|\bOOMKilled\b"
        r"|node running low on memory|std::bad_alloc",
    ),
    Source.CONTEXT: (
        r"(?:CUDA device ordinal (?P<ordinal>\d+): \w+: )?"
        r"(?:failed call to|Failed call to) \w+: [^\n]{0,200}?CUDA_ERROR_OUT_OF_MEMORY",
        r"Failed to create stream executor for device CUDA:(?P<ordinal>\d+): [^\n]{0,200}?"
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"(?:failed initializing StreamExecutor|No visible GPU devices|setting up device)"
        r"[^\n]{0,300}?CUDA_ERROR_OUT_OF_MEMORY",
    ),
}
_PATTERNS = [(source, _pattern(text)) for source, texts in _SENTENCES.items() for text in texts]


def find_messages(text: str) -> tuple[Message, ...]:
    """Every such sentence in `text`, in order."""
    return tuple(sorted(_messages(text), key=lambda message: message.start))


def _messages(text: str) -> Iterator[Message]:
    for source, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            groups = match.groupdict()
            requested, more = _size(groups, "requested"), _size(groups, "more")
            if requested is not None and more is not None:
                requested = LoggedSize(
                    requested.size_bytes + more.size_bytes,
                    requested.slack_bytes + more.slack_bytes,
                )
            limit, free = _size(groups, "limit"), _size(groups, "free")
            yield Message(
                source=source,
                start=match.start(),
                end=match.end(),
                text=" ".join(match[0].split()),
                names_memory=_NAMES_MEMORY.search(match[0]) is not None,
                requested=requested,
                limit_bytes=limit.size_bytes if limit is not None else None,
                free_bytes=free.size_bytes if free is not None else None,
                executable_name=groups.get("program"),
                place=_HOST if source in (Source.HOST, Source.HOST_ARRAY) else _place(groups),
            )


def _size(groups: dict[str, str | None], name: str) -> LoggedSize | None:
    hexadecimal = groups.get(f"{name}_hex")
    if hexadecimal is not None:
        return LoggedSize(int(hexadecimal, 16))
    value = groups.get(name)
    return parse_size(value) if value is not None else None


def _place(groups: dict[str, str | None]) -> str | None:
    if groups.get("host"):
        return _HOST
    if groups.get("ordinal") is not None:
        return f"GPU_{groups['ordinal']}"
    allocator = re.match(r"GPU_\d+", groups.get("allocator") or "")
    return allocator[0] if allocator is not None else groups.get("core")
