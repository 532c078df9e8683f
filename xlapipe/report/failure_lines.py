"""`xlapipe explain`: a memory failure, and the allocation of a plan that it is about, by its size.

In words for a terminal, and as JSON.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.plans.peak import peak_of
from xlapipe.report.failures.allocator_dump import AllocatorDump
from xlapipe.report.failures.failure import FailureKind, LoggedBuffer, Memory, MemoryFailure
from xlapipe.report.failures.messages import MemoryWarning, WarningKind
from xlapipe.report.failures.read_log import LogFindings
from xlapipe.report.failures.sizes import LoggedSize
from xlapipe.report.records import named
from xlapipe.report.target_text import short_label
from xlapipe.report.units import exact, rounded
from xlapipe.report.xla_subject import XlaSubject

_MAX_BUFFERS = 8
_MAX_CHUNKS = 5
_MAX_MESSAGE = 240
_MAX_WARNINGS = 5

_TITLES = {
    FailureKind.EXECUTION: "a program could not allocate memory when it ran",
    FailureKind.COMPILE: "the compiler found that the program does not fit",
    FailureKind.ARGUMENT: "an array could not be placed on the device",
    FailureKind.AUTOTUNING: "XLA could not allocate the memory to time kernels while it compiled",
    FailureKind.FRAGMENTATION: "enough memory was free, but not in one piece",
    FailureKind.OTHER_PROCESS: "the device's memory is in use outside this process's allocator",
}
_ON_CHIP_TITLE = (
    "a kernel needs more of the chip's own memory than it has; the device's is not involved"
)
_ADVICE = {
    FailureKind.EXECUTION: (
        "Arguments, outputs and temporary memory must fit beside every other live array."
    ),
    FailureKind.COMPILE: "Nothing was allocated: the plan itself is larger than the memory.",
    FailureKind.ARGUMENT: (
        "No program ran: the live arrays fill the memory. Delete arrays that are no longer "
        "needed, or shard them; `jax.live_arrays()` lists them."
    ),
    FailureKind.AUTOTUNING: (
        "Compile before the large arrays are placed on the device, or compile without timing: "
        "`--xla_gpu_autotune_level=0`, or with a lock of `xlapipe dump --tuning tune`."
    ),
    FailureKind.FRAGMENTATION: (
        "Allocate the large arrays first, donate instead of copying, or use an allocator that "
        "maps pages: `XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async`."
    ),
    FailureKind.OTHER_PROCESS: (
        "`nvidia-smi` lists the processes on the device. By default jax takes three quarters of "
        "the memory when it starts: of two processes on one GPU the second finds the rest. Set "
        "`XLA_CLIENT_MEM_FRACTION` in each."
    ),
}
_ON_CHIP_ADVICE = (
    "Give the kernel smaller blocks (`BlockSpec`, tile or block sizes), fewer pipeline stages, or "
    "narrower types. On a TPU the limit of scoped VMEM can be raised: "
    "`pltpu.CompilerParams(vmem_limit_bytes=…)`, or `--xla_tpu_scoped_vmem_limit_kib` in "
    "`LIBTPU_INIT_ARGS`."
)
_HOST_ADVICE = (
    "The allocator of the host's memory (`pinned_host`) is full: keep or offload less there."
)
_IN_THE_POOL = (FailureKind.EXECUTION, FailureKind.ARGUMENT, FailureKind.FRAGMENTATION)
# Hundredths of the pool: with no more in use, what the process holds beside is small.
_NEARLY_EMPTY = 2
# The allocators of GPUs round a size up to a multiple of this.
_GRANULE_BYTES = 256
_MAX_GROUPS = 12


def planned_failure(failure: MemoryFailure, dump: XlaSubject) -> dict[str, Any]:
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
    groups = peak.groups_in(candidates[0]) if candidates else peak.groups
    return {
        "module": module,
        "workload": dump.dump.manifest.compiled_name if dump.dump is not None else None,
        "autotuning": dump.program.autotuning,
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


def failure_figures(log: LogFindings, planned: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON of `xlapipe explain`; what the log does not contain is None.

    `kind` is None if the log has warnings only; `plan` is a key only if a plan was given.
    """
    failure = log.last_failure
    free, largest = (failure.free, failure.largest_free) if failure is not None else (None, None)
    figures = {
        **named(failure, "kind", "requested_bytes", "executable_name", "device"),
        **named(failure, "limit_bytes", "held_bytes"),
        **named(free, "size_bytes", prefix="free_"),
        **named(failure, "memory", "hardware", "exceeds_limit"),
        "call": _fields(failure.call, "source", "function") if failure is not None else None,
        "instruction": _fields(failure.instruction, "name", "shape", "source", "op_name")
        if failure is not None
        else None,
        "warnings": [
            named(warning, "kind", "line", "count", "message", "needed_bytes", "limit_bytes")
            | named(warning, "original_bytes", "shape", "instruction", "sharding", "source")
            for warning in log.warnings
        ],
    }
    figures["free_bytes"] = figures.pop("free_size_bytes")
    figures["largest_free_bytes"] = largest.size_bytes if largest is not None else None
    return figures if planned is None else {**figures, "plan": planned}


def _fields(record: Any, *names: str) -> dict[str, Any] | None:
    return named(record, *names) if record is not None else None


def failure_lines(log: LogFindings, *, planned: Mapping[str, Any] | None = None) -> Iterator[str]:
    """What a log reports, for a terminal."""
    failure = log.last_failure
    if failure is None:
        yield "warning: XLA compiled a program that needs more memory than it wanted"
        for warning in log.warnings:
            yield f"  line {warning.line}: {_shortened(warning.message)}{_times(warning.count)}"
            yield from (f"  {line}" for line in _warning_lines(warning))
        yield "No allocation failed in this log: the warning did not end the run, which went on."
        return
    title = _ON_CHIP_TITLE if failure.memory is Memory.ON_CHIP else _TITLES[failure.kind]
    explaining = [logged for logged in log.warnings if _explains(logged, failure)]
    yield f"{failure.kind}: {title}"
    yield f"  line {failure.line}: {_shortened(failure.message)}{_times(failure.count)}"
    if failure.exceeds_limit:
        yield (
            f"  cannot fit at any time: {exact(failure.requested_bytes or 0)} requested, "
            f"{exact(failure.limit_bytes or 0)} is the limit"
        )
    yield f"  why {failure.kind}: {failure.reason}"
    for warning in explaining:
        yield from (f"  {line}" for line in _warning_lines(warning, failed=True))
    yield from _figure_lines(failure)
    if failure.allocator is not None:
        yield from _allocator_lines(failure.allocator)
    yield from _part_lines(failure)
    if planned is not None:
        yield from _plan_lines(failure, planned)
    yield from ("", _advice(failure))
    if failure.held_bytes is None and failure.kind in _IN_THE_POOL:
        yield (
            "The log lacks the allocator's figures; TF_CPP_MIN_LOG_LEVEL=0 in the run's "
            "environment adds them."
        )
    if failure.memory is not Memory.ON_CHIP:
        if planned is None:
            yield (
                "To see what is in the allocation: xlapipe explain LOG --workload module:step, or "
                "`xlapipe dump module:step --out DIR` once and --plan DIR."
            )
        yield f"To see what helps, with bytes from compiles: {_choose(failure, planned)}"
    others = [other for other in log.failures if other is not failure]
    if others:
        yield ""
        yield f"{len(others)} other memory failures in this log:"
        yield from (f"  line {other.line}: {_shortened(other.message)}" for other in others)
    rest = [warning for warning in log.warnings if warning not in explaining]
    if rest:
        yield ""
        yield "XLA also warned:"
        for warning in rest[:_MAX_WARNINGS]:
            text = "; ".join(_warning_lines(warning))
            yield f"  line {warning.line}: {text}{_times(warning.count)}"
        if len(rest) > _MAX_WARNINGS:
            yield f"  and {len(rest) - _MAX_WARNINGS} more"


def _explains(warning: MemoryWarning, failure: MemoryFailure) -> bool:
    """Whether a warning is about the program or the array of a failed request."""
    requested, needed_bytes = failure.requested, warning.needed_bytes
    if requested is None or needed_bytes is None:
        return False
    if warning.kind is WarningKind.REPLICATED:
        return _is_size(needed_bytes, requested)
    if warning.kind is WarningKind.ARGUMENTS:
        return requested.most_bytes <= needed_bytes
    # The request is the program's temporary memory, which is most of it.
    return needed_bytes // 2 <= requested.size_bytes <= needed_bytes + requested.slack_bytes


def _warning_lines(warning: MemoryWarning, *, failed: bool = False) -> Iterator[str]:
    needed, limit = _both(warning.needed_bytes), _both(warning.limit_bytes)
    if warning.kind is WarningKind.ARGUMENTS:
        yield f"arguments and outputs alone need {needed}, more than XLA's limit of {limit}"
    elif warning.kind is WarningKind.REMATERIALISATION:
        least = _as_xla(warning.needed_bytes or 0)
        yield (
            f"the program needs {needed}: XLA compiled it for {limit} and could not rematerialise "
            f"below {least}"
        )
        if warning.original_bytes is not None:
            saved_bytes = warning.original_bytes - (warning.needed_bytes or 0)
            saved = f"saved {exact(saved_bytes)}" if saved_bytes else "saved nothing"
            yield f"rematerialisation {saved}: {_as_xla(warning.original_bytes)} before"
    elif warning.shape is None:
        yield f"XLA replicates an array on every device to go from {warning.sharding}"
    else:
        same = ", exactly the failed request" if failed else ""
        source = f", at {warning.source}" if warning.source else ""
        yield (
            f"XLA replicates {warning.shape} = {exact(warning.needed_bytes or 0)} on every "
            f"device{same}: {warning.instruction}{source}"
        )
        yield (
            f"involuntary full rematerialisation, from {warning.sharding}: give the array and its "
            "producer one sharding"
        )


def _both(size_bytes: int | None) -> str:
    return f"{_as_xla(size_bytes or 0)} ({exact(size_bytes or 0)})"


def _as_xla(size_bytes: int) -> str:
    """With two decimals, as XLA prints it."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else rounded(size_bytes)


def _times(count: int) -> str:
    return f" (printed {count} times)" if count > 1 else ""


def _advice(failure: MemoryFailure) -> str:
    if failure.memory is Memory.ON_CHIP:
        return _ON_CHIP_ADVICE
    if failure.exceeds_limit and failure.kind is not FailureKind.COMPILE:
        return "Other arrays are not in the way: the program itself must need less, or be sharded."
    return _HOST_ADVICE if failure.memory is Memory.HOST else _ADVICE[failure.kind]


def _choose(failure: MemoryFailure, planned: Mapping[str, Any] | None) -> str:
    """The command that compiles what saves memory, and compares it with what the run may use."""
    name = planned["workload"] if planned is not None and planned["workload"] else "module:step"
    command = f"xlapipe choose {shlex.quote(name)}"
    if failure.limit_bytes is None or failure.memory is Memory.HOST:
        return command
    # What was in use in addition to the program's own arguments stays in use.
    argument_bytes = planned["argument_bytes"] if planned is not None else failure.held_bytes or 0
    others_bytes = max(0, (failure.held_bytes or 0) - argument_bytes)
    reserved = f"-{others_bytes}" if others_bytes else ""
    return f"{command} --memory {failure.limit_bytes}{reserved}"


def _shortened(message: str) -> str:
    if len(message) <= _MAX_MESSAGE:
        return message
    return f"{message[:_MAX_MESSAGE].rpartition(' ')[0]} …"


def _figure_lines(failure: MemoryFailure) -> Iterator[str]:
    in_pool = failure.kind is not FailureKind.COMPILE and failure.memory is Memory.DEVICE
    compiled, instruction = failure.kind is FailureKind.COMPILE, failure.instruction
    rows = (
        ("requested", _logged(failure.requested), True),
        ("executable", failure.executable_name, True),
        ("called at", _call(failure), False),
        ("device", failure.device, in_pool),
        ("limit", _size(failure.limit_bytes), in_pool),
        ("in use", _size(failure.held_bytes), in_pool),
        ("free", _logged(failure.free), False),
        ("one piece", _logged(failure.largest_free), False),
        ("timed", f"{instruction.name} {instruction.shape}" if instruction else None, False),
        ("of", _source(instruction.op_name, instruction.source) if instruction else None, False),
    )
    for name, value, always in rows:
        if value is not None or (always and not (compiled and name == "device")):
            yield f"  {name:<11} {value or 'not in the log'}"


def _source(op_name: str | None, source: str | None) -> str | None:
    return "  ".join(filter(None, (source, op_name))) or None


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
        used = 100 - sum(allocator.free_pieces)
        alone = ": no other array is in the way" if used <= _NEARLY_EMPTY else ""
        yield f"  the pool    {used} of 100 parts in use{alone}"
        yield f"    {allocator.picture}"
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
