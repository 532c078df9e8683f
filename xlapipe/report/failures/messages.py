"""The sentences with which XLA, libtpu, CUDA's libraries and NCCL report that memory ran out.

Sources of the texts, jaxlib 0.8 to 0.12 unless noted:

- GPU: xla/stream_executor/integrations/tf_allocator_adapter.cc (`MemoryAllocationError`),
  xla/stream_executor/stream_executor_address_allocator.cc, cuda_executor.cc, cuda_platform.cc,
  xla/service/gpu/runtime (command buffers), xla/backends/gpu/collectives (NCCL).
- TPU: libtpu, and docs/errors of openxla/xla (E0100, E0101, E1000, E1001).
- NCCL: src/include/alloc.h and checks.h.
- Shared memory of a GPU's kernel: Triton, jax's Mosaic GPU, ptxas, CUDA's launch.
- Host: numpy, PyTorch in the same process, Linux, Slurm, Kubernetes, Ray.

A sentence may be folded over several lines, so every space matches any white space.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from xlapipe.report.failures.failure import Hardware, Memory
from xlapipe.report.failures.sizes import SIZE_WITH_UNIT, LoggedSize, parse_size


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
      free, largest_free: what was left, and its largest piece, if the sentence contains them.
      place: the memory it is about: a device, or `host`.
      is_usage: whether it is the head of a TPU compiler's table of what a program needs, which
        follows its error, or is all that a log has of it.
      names_memory: whether it, or a message that it repeats, states that memory ran out.
    """

    source: Source
    start: int
    end: int
    text: str
    requested: LoggedSize | None = None
    limit_bytes: int | None = None
    free: LoggedSize | None = None
    largest_free: LoggedSize | None = None
    executable_name: str | None = None
    place: str | None = None
    is_usage: bool = False
    names_memory: bool = True

    @property
    def memory(self) -> Memory:
        """Which memory ran out."""
        if self.place == HOST:
            return Memory.HOST
        on_chip = self.source is Source.COMPILER and _ON_CHIP.search(self.text) is not None
        return Memory.ON_CHIP if on_chip else Memory.DEVICE

    @property
    def hardware(self) -> Hardware | None:
        """What the words are about."""
        if self.source in (Source.LOADING, Source.TRANSFER) or _OF_TPUS.search(self.text):
            return Hardware.TPU
        place = self.place or ""
        gpu = place.startswith("GPU_") or self.memory is Memory.ON_CHIP
        return Hardware.GPU if gpu or self.source is Source.LIBRARY else None


# CUDA's error 2 is CUDA_ERROR_OUT_OF_MEMORY.
_NAMES_MEMORY = re.compile(r"memory|MEMORY|alloc|ALLOC|\berr 2\b")
_ON_CHIP = re.compile(
    r"(?i)\b(?:[vscd]mem|sflag|shared (?:memory|data)|tensor memory|smem_bytes|out of resource)\b"
)
# Spaces of a TPU's memory, and words of its compiler.
_OF_TPUS = re.compile(
    r"(?i)\b(?:(?:memory space|space=|exceeded|program) ?(?:scoped )?(?:hbm|[vsc]mem|sflag|host)\b"
    r"|on HBM\b|TPU\b|Aborting compilation early)"
)
HOST = "host"
# A number without a unit is bytes.
_SIZE = rf"(?:{SIZE_WITH_UNIT}|\d+(?!\w|\.\d))"


def _pattern(text: str) -> re.Pattern[str]:
    sized = re.sub(r"(?<!\?P)<(\w+)>", lambda match: f"(?P<{match[1]}>{_SIZE})", text)
    return re.compile(sized.replace(r" ", r"\s+"))


# By source; each sentence ends with a comma.
_SENTENCES = {
    Source.POOL: (
        r"Out of memory while trying to allocate(?: <requested>)?"
        r"(?: with allocator (?P<allocator>\w+?)(?: on device (?P<ordinal>\d+))?\b)?",
        r"Out of (?P<host>host) memory while trying to allocate <requested>",
        r"Out of memory allocating <requested>",
        r"Failed to allocate <requested> for new constant",
        r"Failed to allocate \S+ \(<requested>\) of (?:pinned )?"
        r"(?P<host>host) memory",
        r"Allocating <requested> exceeds the memory limit of "
        r"<limit>",
        r"Failed to allocate request for (?:\S+ )?\(<requested>\) "
        r"on device ordinal (?P<ordinal>\d+)",
    ),
    Source.COMPILER: (
        r"Ran out of memory in memory space (?P<space>\w+)(?:(?: while[\s\S]{0,4000}?)?\. "
        r"Used <requested> of <limit> \w+\. Exceeded \w+ capacity by \S+\.)?",
        r"Scoped allocation with size <requested> and limit <limit> exceeded scoped \w+ limit",
        r"Ran out of memory on HBM, the total memory required for HLO temporaries "
        r"\(<requested>\) exceeds available HBM \(<limit>\)",
        r"Aborting compilation early because it's unlikely to have enough (?:device )?memory\. "
        r"Requires <requested>, has <limit> available",
        r"TPU TensorCore Hbm usage: <requested>, SparseCore Hbm usage:? <more>, "
        r"exceeding available bytes: <limit>",
        r"(?P<usage>Program (?P<space>\w+) requirement <requested>:)",
        r"Allocation \(size=<requested>\) would exceed memory \(size=<limit>\)"
        r"(?: ::[^\n]{0,400}?space=(?P<space>\w+))?",
        r"(?:Shared|Tensor) memory size limit exceeded: requested <requested>, "
        r"available: <limit>",
        r"out of resource: [\w .:-]{1,200}?,? Required: <requested>,? Hardware limit:\s*<limit>",
        r"Mosaic GPU kernel exceeds available shared memory: smem_bytes=<requested> > "
        r"(?:max_smem_bytes=)?<limit>",
        r"<requested> of shared memory, which exceeds the (?:device )?limit of <limit>",
        r"[Rr]equested (?:dynamic )?shared memory(?: size)?:? \(?<requested>\)?(?: per block)?,? "
        r"(?:exceeds|is (?:more|larger|greater) than|>)[^\n\d]{0,80}<limit>",
        r"uses too much shared data \(0x(?P<requested_hex>[0-9a-f]+) bytes, "
        r"0x(?P<limit_hex>[0-9a-f]+) max\)",
    ),
    Source.LOADING: (
        r"(?:Error loading program '(?P<program>[^']*)': )?Attempting to reserve <requested> "
        r"at the bottom of memory\. That was not possible\. There are <free> free, \S+ "
        r"reserved, and <largest> reservable\.",
    ),
    Source.TRANSFER: (
        r"Could not allocate <requested> in memory (?P<core>\w+); "
        r"<largest> allocatable, <free> available",
        r"(?:Error allocating device buffer: )?Attempting to allocate <requested>\. That was "
        r"not possible\. There are <free> free\.(?:; \((?P<core>\w+)\))?",
    ),
    Source.LIBRARY: (
        r"Failed to load in-memory CUBIN[^\n]*?:? (?:\n )?CUDA_ERROR_OUT_OF_MEMORY",
        r"Underlying backend ran out of memory trying to instantiate command buffer",
        r"NCCL operation \w+[^\n]{0,400}? failed: [^\n]{0,600}?"
        r"(?:out of memory|Failed to CUDA \w+(?: async)? <requested>)",
        r"(?:\[(?P<ordinal>\d+)\] )?Failed to allocate collective memory of \S+ "
        r"\(<requested>\): [^\n]{0,200}?CUDA_ERROR_OUT_OF_MEMORY",
        r"Failed to allocate [\w ]{1,40} for "
        r"(?:ragged-)?(?:all|reduce|collective)-\w+(?:-\w+)?",
        r"NCCL WARN (?:Failed to CUDA \w+(?: async)? <requested>"
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
        r"Detected \d+ oom[_-]kill event|[Oo]ut of memory: Killed process|\bOOMKilled\b"
        r"|\binvoked oom-killer|\boom-kill:constraint=\w+"
        r"|node running low on memory|std::bad_alloc|\bMemoryError\b",
        r"DefaultCPUAllocator: [^\n]{0,60}you tried to allocate <requested>",
        r"\[Errno 12\] Cannot allocate memory|mmap failed: Cannot allocate memory",
        r"(?i)failed to (?:alloc(?:ate)?|pin|register) (?:<requested> (?:bytes )?)?"
        r"(?:of |on )?(?:the )?(?:pinned |NUMA |page-locked ){0,2}(?:host|NUMA node \d+)\b",
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
                requested += more
            limit = _size(groups, "limit")
            yield Message(
                source=source,
                start=match.start(),
                end=match.end(),
                text=" ".join(match[0].split()),
                names_memory=_NAMES_MEMORY.search(match[0]) is not None,
                requested=requested,
                limit_bytes=limit.size_bytes if limit is not None else None,
                free=_size(groups, "free"),
                largest_free=_size(groups, "largest"),
                is_usage=groups.get("usage") is not None,
                executable_name=groups.get("program"),
                place=HOST if source in (Source.HOST, Source.HOST_ARRAY) else _place(groups),
            )


def _size(groups: dict[str, str | None], name: str) -> LoggedSize | None:
    hexadecimal = groups.get(f"{name}_hex")
    if hexadecimal is not None:
        return LoggedSize(int(hexadecimal, 16))
    value = groups.get(name)
    return parse_size(value) if value is not None else None


def _place(groups: dict[str, str | None]) -> str | None:
    if groups.get("host") or groups.get("space") == HOST:
        return HOST
    if groups.get("ordinal") is not None:
        return f"GPU_{groups['ordinal']}"
    allocator = re.match(r"GPU_\d+", groups.get("allocator") or "")
    return allocator[0] if allocator is not None else groups.get("core")
