"""Host memory, copies between host and device, and host callbacks, as data and as lines.

Also the calls of which a plan that was compiled without a GPU lacks the workspace.
"""

from collections.abc import Iterator

from xlapipe.plans import Plan
from xlapipe.plans.host_transfers import find_host_transfers
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.missing_memory import missing_lines
from xlapipe.plans.wording import counted

_MAX_TRANSFERS = 20


def host_lines(plan: Plan) -> Iterator[str]:
    """Lines for people; none for a plan that uses no memory or code of the host."""
    host = plan.spaces[MemorySpace.HOST]
    if host.total_bytes:
        yield (
            f"host memory: {host.total_bytes:,} B (parameters {host.parameter_bytes:,} B, outputs "
            f"{host.live_out_bytes:,} B, of these aliased {host.aliased_bytes:,} B, temp "
            f"{host.temp_bytes:,} B); not in the totals of the device"
        )
    transfers = find_host_transfers(plan)
    for transfer in transfers[:_MAX_TRANSFERS]:
        direction = "device to host" if transfer.direction == "to_host" else "host to device"
        how = "asynchronous" if transfer.asynchronous else "synchronous"
        source = f", {transfer.source}" if transfer.source is not None else ""
        yield f"  {direction}: {transfer.moved_bytes:,} B, {how}, {transfer.instruction}{source}"
    if len(transfers) > _MAX_TRANSFERS:
        yield f"  … and {len(transfers) - _MAX_TRANSFERS} more (--json has all)"
    yield from callback_lines(plan)
    yield from missing_lines(plan.missing_memory)
    yield from untuned_call_lines(plan)


def callback_lines(plan: Plan) -> Iterator[str]:
    """The callbacks, and that the plan does not have their host side; none without callbacks."""
    calls = plan.host_callbacks
    if not calls:
        return
    count = counted(len(calls), "host callback")
    yield f"{count}; the plan was made without the Python code that they call"
    for call in calls:
        source = call.source or "source line unknown"
        yield f"  {call.name}: {source}"


def untuned_call_lines(plan: Plan) -> Iterator[str]:
    """That calls have no algorithm and no workspace; none if autotune results name them all."""
    calls = plan.untuned_calls
    if calls:
        yield (
            f"{counted(len(calls), 'convolution')} of cuDNN without an algorithm: temp lacks the "
            "workspaces, which autotune results of the GPU state (--tuning)"
        )
