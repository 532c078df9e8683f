"""Memory other than the device's, copies to and from it, and what a plan does not have.

That is host memory and host callbacks, a TPU's own memory with moves and padding, and calls of
which a plan that was compiled without a GPU lacks the workspace.
"""

from collections.abc import Iterator
from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.plans import MemorySpace, Plan
from xlapipe.plans.copies import Move
from xlapipe.plans.host_transfers import find_host_transfers
from xlapipe.plans.missing_memory import missing_lines
from xlapipe.plans.occupancy import Occupancy
from xlapipe.plans.wording import counted
from xlapipe.report.records import named


def space_rows(plan: Plan) -> dict[str, dict[str, Any]]:
    """Bytes by memory space; `peak_bytes` are the most in use at one position, None if unknown."""
    return {
        str(space): {
            **named(totals, "parameter_bytes", "live_out_bytes", "aliased_bytes", "temp_bytes"),
            "total_bytes": totals.total_allocation_bytes,
            "peak_bytes": Occupancy(plan, space).peak_bytes,
        }
        for space, totals in plan.spaces.items()
    }


def move_figures(move: Move) -> dict[str, Any]:
    """The JSON of a move into a TPU's own memory, or back."""
    return {
        **named(move.copy, "instruction", "source"),
        "moved_bytes": move.copy.copied_bytes,
        "from": move.source_space,
        "to": move.target_space,
    }


_MAX_TRANSFERS = 20


def host_lines(plan: Plan) -> Iterator[str]:
    """Lines for people; none for a plan that uses no memory or code of the host."""
    host = plan.spaces[MemorySpace.HOST]
    if host.total_allocation_bytes:
        yield (
            f"host memory: {host.total_allocation_bytes:,} B (parameters "
            f"{host.parameter_bytes:,} B, outputs {host.live_out_bytes:,} B, of these aliased "
            f"{host.aliased_bytes:,} B, temp {host.temp_bytes:,} B); not in the device's totals"
        )
    transfers = find_host_transfers(plan)
    for transfer in transfers[:_MAX_TRANSFERS]:
        direction = "device to host" if transfer.direction == "to_host" else "host to device"
        how = "asynchronous" if transfer.asynchronous else "synchronous"
        source = f", {transfer.source}" if transfer.source is not None else ""
        yield f"  {direction}: {transfer.moved_bytes:,} B, {how}, {transfer.instruction}{source}"
    if len(transfers) > _MAX_TRANSFERS:
        yield f"  … and {len(transfers) - _MAX_TRANSFERS} more (--json has all)"
    if calls := plan.host_callbacks:
        count = counted(len(calls), "host callback")
        yield f"{count}; the plan was made without the Python code that they call"
        yield from (f"  {call.name}: {call.source or 'source line unknown'}" for call in calls)
    yield from missing_lines(plan.missing_memory)
    if untuned := plan.untuned_calls:
        library = platform_named(plan.platform).convolution_library
        yield (
            f"{counted(len(untuned), 'convolution')} of {library} without an algorithm: temp lacks "
            "the workspaces, which autotune results of the GPU state (--tuning)"
        )
