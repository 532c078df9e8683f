"""`xlapipe explain`: a memory failure, and the allocation of a plan that it is about, by its size.

In words for a terminal, and as JSON.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from xlapipe.dump.opened import Opened
from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.plans.peak import peak_of
from xlapipe.report.advice import Remedy, remedy_figures
from xlapipe.report.failures.allocator_dump import AllocatorDump
from xlapipe.report.failures.failure import (
    FailureKind,
    Hardware,
    LoggedBuffer,
    Memory,
    MemoryFailure,
)
from xlapipe.report.failures.sizes import LoggedSize
from xlapipe.report.records import named
from xlapipe.report.target_text import short_label
from xlapipe.report.units import exact, rounded

_MAX_BUFFERS = 8
_MAX_CHUNKS = 5
_MAX_MESSAGE = 240

_TITLES = {
    FailureKind.EXECUTION: "a program could not allocate memory when it ran",
    FailureKind.COMPILE: "the compiler found that the program does not fit",
    FailureKind.ARGUMENT: "an array could not be placed on the device",
    FailureKind.AUTOTUNING: "XLA could not allocate the memory to time kernels while it compiled",
    FailureKind.FRAGMENTATION: "enough memory was free, but not in one piece",
    FailureKind.OTHER_PROCESS: "the device's memory is in use outside this process's allocator",
    FailureKind.LIBRARY: "a library or the driver found no memory outside XLA's allocator",
}
# For another memory than the device's.
_TITLES_OF_MEMORY = {
    (FailureKind.COMPILE, Memory.ON_CHIP): (
        "a kernel needs more of the chip's own memory than it has; the device's is not involved"
    ),
    (FailureKind.COMPILE, Memory.HOST): (
        "the compiler found that what the program keeps in the host's memory does not fit"
    ),
    (FailureKind.ARGUMENT, Memory.HOST): "an array could not be placed in the host's memory",
    (FailureKind.EXECUTION, Memory.HOST): "the host's memory ran out, not a device's",
}
_ADVICE = {
    FailureKind.EXECUTION: (
        "Arguments, outputs and temporary memory must fit beside every other live array.",
    ),
    FailureKind.COMPILE: ("Nothing was allocated: the plan itself is larger than the memory.",),
    FailureKind.ARGUMENT: (
        "No program ran: the live arrays fill the memory. Delete arrays that are no longer "
        "needed, or shard them; `jax.live_arrays()` lists them.",
    ),
    FailureKind.AUTOTUNING: (
        "Compile before the large arrays are placed on the device, or compile without timing: "
        "`--xla_gpu_autotune_level=0`, or with a lock of `xlapipe dump --tuning tune`.",
    ),
    FailureKind.FRAGMENTATION: (
        "Allocate the large arrays first, donate instead of copying, or use an allocator that "
        "maps pages: `XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async`.",
    ),
    FailureKind.OTHER_PROCESS: (
        "`nvidia-smi` lists the processes on the device. By default jax takes three quarters of "
        "the memory when it starts: of two processes on one GPU the second finds the rest. Set "
        "`XLA_CLIENT_MEM_FRACTION` in each.",
    ),
    FailureKind.LIBRARY: (
        "The allocator's pool leaves too little for NCCL, cuBLAS, cuDNN, CUDA graphs and kernel "
        "code: lower `XLA_CLIENT_MEM_FRACTION`, so that the pool is smaller.",
    ),
}
_SMALLER = (
    "give it smaller blocks (`BlockSpec`, tile or block sizes), fewer pipeline stages, or narrower "
    "types"
)
_ADVICE_FOR_A_KERNEL = {
    Hardware.GPU: (
        f"Each block of a kernel has this much shared memory, on the chip: {_SMALLER}.",
        "`xlapipe check module:step` names the Pallas kernel, without a GPU.",
    ),
    Hardware.TPU: (
        f"A kernel or fusion keeps its blocks in the chip's VMEM or SMEM: {_SMALLER}, or raise the "
        "limit of scoped VMEM: `pltpu.CompilerParams(vmem_limit_bytes=…)`, or "
        "`--xla_tpu_scoped_vmem_limit_kib` in `LIBTPU_INIT_ARGS`.",
    ),
}
_ADVICE_FOR_HOST = {
    FailureKind.COMPILE: (
        "Nothing was allocated: the step keeps these buffers in the host's memory (`pinned_host`, "
        "S(5) in a shape). Offload fewer or smaller values, or use a host with more memory.",
    ),
    FailureKind.EXECUTION: (
        "Keep less on the host: batches that are read ahead, copies of parameters, processes per "
        "host. A job's or container's limit counts too.",
    ),
}
_ADVICE_FOR_TPU = {
    FailureKind.FRAGMENTATION: (
        "A TPU's runtime reserves one piece for a program, and does not move arrays. Load the "
        "largest program first, donate instead of copying, and delete arrays and programs that "
        "are no longer needed (`jax.clear_caches()`) before it is loaded.",
    ),
}


_IN_THE_POOL = (FailureKind.EXECUTION, FailureKind.ARGUMENT, FailureKind.FRAGMENTATION)
# The allocators of GPUs round a size up to a multiple of this.
_GRANULE_BYTES = 256
_MAX_GROUPS = 12


def planned_failure(failure: MemoryFailure, dump: Opened) -> dict[str, Any]:
    """The JSON of what a plan shows about a failure.

    `allocation` is the one whose size is the requested one, of `candidates` of this size; None
    without any. `contents` are the largest in it where it is fullest; without it, those of the
    program at its peak. `same_module` is None if the log or the plan names none.
    """
    plan, named_module = dump.plan, failure.executable_name
    module = plan.module.name if plan.module is not None else None
    known = module is not None and named_module is not None
    candidates = _candidates(failure, plan)
    peak = peak_of(dump.program)
    groups = peak.arena(candidates[0]).groups_at_fullest if candidates else peak.groups
    return {
        "module": module,
        "autotuning": dump.autotuning,
        "same_module": module == named_module if known else None,
        "argument_bytes": plan.totals.parameter_bytes,
        "output_bytes": plan.totals.live_out_bytes - plan.totals.aliased_bytes,
        "temp_bytes": plan.totals.temp_bytes,
        "total_bytes": plan.totals.total_allocation_bytes,
        "allocation": {
            **named(candidates[0], "index", "size_bytes", "kinds"),
            "candidates": len(candidates),
        }
        if candidates
        else None,
        "contents": [
            {
                **named(group, "label", "role", "sources"),
                "bytes": group.counted_bytes,
                "values": len(group.values),
            }
            for group in groups[:_MAX_GROUPS]
        ],
    }


def _candidates(failure: MemoryFailure, plan: Plan) -> list[BufferAllocation]:
    # A compile reports the size of the whole program.
    if failure.requested is None or failure.kind is FailureKind.COMPILE:
        return []
    return allocations_of_size(plan.device_allocations, failure.requested)


def allocations_of_size(
    allocations: Iterable[BufferAllocation], requested: LoggedSize
) -> list[BufferAllocation]:
    """Allocations that may be the requested one: temporary first, then outputs, then arguments."""
    of_size = [
        allocation
        for allocation in allocations
        if not allocation.is_a(AllocationKind.THREAD_LOCAL)
        and _is_size(allocation.size_bytes, requested)
    ]
    return sorted(of_size, key=lambda allocation: (_rank(allocation), -allocation.size_bytes))


def _is_size(size_bytes: int, requested: LoggedSize) -> bool:
    rounded = -(-size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
    return requested.may_be(size_bytes) or requested.may_be(rounded)


def _rank(allocation: BufferAllocation) -> int:
    if allocation.is_a(AllocationKind.PARAMETER):
        return 2
    return 1 if allocation.is_a(AllocationKind.MAYBE_LIVE_OUT) else 0


def failure_figures(
    failure: MemoryFailure,
    remedies: Sequence[Remedy] = (),
    planned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON of `xlapipe explain`; what the log does not contain is None.

    `plan` is a key only if a plan was given.
    """
    figures = {
        **named(failure, "kind", "requested_bytes", "executable_name", "device"),
        **named(failure, "limit_bytes", "held_bytes", "free_bytes", "largest_free_bytes"),
        **named(failure, "memory", "hardware"),
        "call": named(failure.call, "source", "function") if failure.call is not None else None,
        "remedies": remedy_figures(remedies),
    }
    return figures if planned is None else {**figures, "plan": planned}


def failure_lines(
    failure: MemoryFailure,
    *,
    others: Sequence[MemoryFailure] = (),
    planned: Mapping[str, Any] | None = None,
    remedies: Sequence[Remedy] | None = None,
) -> Iterator[str]:
    """A failure for a terminal.

    Args:
      others: failures of the same log that the run survived.
      planned: None without a plan.
      remedies: None if none was tried.
    """
    title = _TITLES_OF_MEMORY.get((failure.kind, failure.memory), _TITLES[failure.kind])
    yield f"{failure.kind}: {title}"
    yield f"  line {failure.line}: {_shortened(failure.message)}"
    yield f"  why {failure.kind}: {failure.reason}"
    yield from _figure_lines(failure)
    if failure.allocator is not None:
        yield from _allocator_lines(failure.allocator)
    yield from _part_lines(failure)
    if planned is not None:
        yield from _plan_lines(failure, planned)
    yield from ("", *_advice(failure))
    if failure.held_bytes is None and failure.kind in _IN_THE_POOL and _has_pool(failure):
        yield (
            "The log lacks the allocator's figures; TF_CPP_MIN_LOG_LEVEL=0 in the run's "
            "environment adds them."
        )
    if failure.memory is not Memory.ON_CHIP:
        yield from _remedy_lines(remedies, planned)
    if others:
        yield ""
        yield f"{len(others)} other memory failures in this log:"
        yield from (f"  line {other.line}: {_shortened(other.message)}" for other in others)


def _advice(failure: MemoryFailure) -> tuple[str, ...]:
    if failure.memory is Memory.ON_CHIP:
        return _ADVICE_FOR_A_KERNEL[failure.hardware or Hardware.GPU]
    if failure.memory is Memory.HOST and failure.kind in _ADVICE_FOR_HOST:
        return _ADVICE_FOR_HOST[failure.kind]
    if failure.hardware is Hardware.TPU and failure.kind in _ADVICE_FOR_TPU:
        return _ADVICE_FOR_TPU[failure.kind]
    return _ADVICE[failure.kind]


def _has_pool(failure: MemoryFailure) -> bool:
    """Whether XLA's allocator of a GPU can have printed its figures."""
    return failure.hardware is not Hardware.TPU and failure.memory is not Memory.HOST


def _shortened(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} …"


def _figure_lines(failure: MemoryFailure) -> Iterator[str]:
    in_pool = failure.kind is not FailureKind.COMPILE and _has_pool(failure)
    rows = (
        ("requested", _logged(failure.requested), True),
        ("executable", failure.executable_name, True),
        ("called at", _call(failure), False),
        ("device", failure.device, failure.memory is Memory.DEVICE),
        ("limit", _size(failure.limit_bytes), in_pool),
        ("in use", _size(failure.held_bytes), in_pool),
        ("free", _logged(failure.free), False),
        ("one piece", _logged(failure.largest_free), False),
    )
    for name, value, always in rows:
        if value is not None or always:
            yield f"  {name:<11} {value or 'not in the log'}"


def _call(failure: MemoryFailure) -> str | None:
    call = failure.call
    if call is None:
        return None
    return f"{call.source}, {call.function}(…)" if call.function else call.source


def _logged(size: LoggedSize | None) -> str | None:
    if size is None:
        return None
    return f"{_size(size.size_bytes)}{' (rounded in the log)' if size.slack_bytes else ''}"


def _size(size_bytes: int | None) -> str | None:
    if size_bytes is None:
        return None
    return f"{rounded(size_bytes)} = {exact(size_bytes)}"


def _allocator_lines(allocator: AllocatorDump) -> Iterator[str]:
    if allocator.picture is not None:
        yield f"  the pool: {allocator.picture}"
    for group in allocator.in_use[:_MAX_CHUNKS]:
        total = exact(group.count * group.size_bytes)
        yield f"  in use: {group.count} chunks of {exact(group.size_bytes)}, total {total}"


def _part_lines(failure: MemoryFailure) -> Iterator[str]:
    for name, size_bytes in failure.parts:
        yield f"  {name:<20} {rounded(size_bytes):>12}"
    if failure.buffers:
        yield "  largest buffers that XLA lists:"
    yield from map(_buffer_line, failure.buffers[:_MAX_BUFFERS])


def _buffer_line(buffer: LoggedBuffer) -> str:
    about = (buffer.op_name or buffer.label, buffer.shape, buffer.source)
    return f"    {rounded(buffer.size_bytes):>12}  " + "  ".join(filter(None, about))


def _plan_lines(failure: MemoryFailure, planned: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield (
        f"plan {planned['module'] or 'without a module name'}: arguments "
        f"{exact(planned['argument_bytes'])}, temporary {exact(planned['temp_bytes'])}, total "
        f"{exact(planned['total_bytes'])}"
    )
    if planned["autotuning"] != "unknown":
        yield f"  {short_label(planned['autotuning'])}"
    if planned["same_module"] is False:
        yield f"  not the module of the log, which is {failure.executable_name}"
    failed = planned["allocation"]
    if failed is None:
        yield "  no allocation of the plan has the requested size; the program at its peak:"
    else:
        kinds, several = ", ".join(failed["kinds"]) or "no kind", failed["candidates"]
        also = f", the first of {several} of this size" if several > 1 else ""
        yield (
            f"  the request is allocation {failed['index']} ({kinds}), "
            f"{exact(failed['size_bytes'])}{also}; in it where it is fullest:"
        )
    for group in planned["contents"]:
        count = f" ({group['values']} values)" if group["values"] > 1 else ""
        source = f"  {group['sources'][0]}" if group["sources"] else ""
        yield f"    {rounded(group['bytes']):>12}  {group['label']}{count}{source}"
    others_bytes = (failure.held_bytes or 0) - planned["argument_bytes"]
    if others_bytes > 0:
        yield (
            f"  {exact(others_bytes)} more were in use than the program's arguments need: "
            "other live arrays, outputs and executables"
        )


def _remedy_lines(
    remedies: Sequence[Remedy] | None, planned: Mapping[str, Any] | None
) -> Iterator[str]:
    if remedies is None:
        if planned is None:
            yield (
                "To see what is in the allocation: xlapipe explain LOG --workload module:step, or "
                "`xlapipe dump module:step --out DIR` once and --plan DIR."
            )
        yield "To see what helps, with bytes from compiles: --workload module:step."
        return
    yield ""
    yield "compiled changes, by what they save:" if remedies else "no compiled change saves memory"
    for remedy in remedies:
        fits = {True: ", fits", False: ", does not fit", None: ""}[remedy.fits]
        yield (
            f"  {exact(remedy.saved_bytes):>24}  {remedy.change}; total "
            f"{exact(remedy.total_bytes)}{fits}"
        )
