"""Error bound of a plan's memory against the device's, by the evidence for its results.

Measured on 173 programs whose plan an H200 or an H100 has recorded, each predicted from other
programs alone (docs/lab/lock.md). Nearly all errors are whole workspaces of cuBLASLt, or come from
fusions that XLA splits for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from xlapipe.plans import AllocationKind, GemmBackend, Plan
from xlapipe.plans.occupancy import Occupancy
from xlapipe.time.predicted_locks.basis import is_guessed

WORKSPACE_BYTES = 33_554_432
"""Workspace that cuBLASLt's products share on a GPU of compute capability 9.0."""
SHARE_PREDICTED, SHARE_UNTUNED = 0.02, 0.2
"""Further errors, as shares of the temporary memory."""
_NOT_TUNED = (GemmBackend.REDUCE, GemmBackend.MXU)
# Of 157 programs, each predicted from others alone, 51 have a greater chance, of which the device
# chose otherwise for 11, and for none of the others.
_LEAST_CHANCE = 0.2


def plan_error_bytes(
    plan: Plan, *, tuned: bool | None, predicted_lock: Mapping[str, int] | None
) -> int:
    """The error that all recorded programs with predicted tuning stay below, and most untuned ones.

    It is 0 with a device's results, and for a plan without products and convolutions.
    """
    convolutions = any(
        (instruction.custom_call_target or "").startswith("__cudnn$conv")
        for instruction in plan.instructions.values()
    )
    products = any(gemm.backend not in _NOT_TUNED for gemm in plan.gemms)
    if tuned is not False or not (products or convolutions):
        return 0
    return stated_error_bytes(plan.totals.temp_bytes, predicted_lock)


def stated_error_bytes(temp_bytes: int, predicted_lock: Mapping[str, int] | None) -> int:
    """The error of a plan with products, by its temporary memory and the bases of its results."""
    if predicted_lock is None:
        return WORKSPACE_BYTES + int(SHARE_UNTUNED * temp_bytes)
    return WORKSPACE_BYTES * is_guessed(predicted_lock) + int(SHARE_PREDICTED * temp_bytes)


@dataclass(frozen=True)
class OtherPlan:
    """The plan if the device's tuner chooses a workspace where this one has none, or the reverse.

    Attributes:
      chance: its probability, from the products whose results this plan's rest on.
      more_bytes: by which its memory is larger; negative if it is smaller.
      is_bound: whether it is that at most, for want of live ranges.
    """

    chance: float
    more_bytes: int
    is_bound: bool = False

    def text(self, size_bytes: int) -> str:
        """The other size of what has this size here, in words."""
        bound = ("as little as " if self.more_bytes < 0 else "up to ") if self.is_bound else ""
        return f"{bound}{size_bytes + self.more_bytes:,} B with a chance of {self.chance:.0%}"


def other_plan(plan: Plan, chance: float | None) -> OtherPlan | None:
    """The plan with the other choice; None where that is unlikely, or makes no difference.

    Its memory is this plan's with the difference at the peak of temporary memory; without live
    ranges, with or without a workspace.
    """
    if chance is None or chance < _LEAST_CHANCE:
        return None
    workspaces = _workspaces(plan)
    products = {gemm.instruction for gemm in plan.gemms if gemm.backend is GemmBackend.TRITON}
    if not workspaces and not products:
        return None
    if plan.live_ranges is None:
        return OtherPlan(chance, -WORKSPACE_BYTES if workspaces else WORKSPACE_BYTES, True)
    temps = [item for item in plan.allocations if item.is_a(AllocationKind.PREALLOCATED_TEMP)]
    occupied = list(Occupancy(replace(plan, allocations=tuple(temps))).occupied_bytes)
    peak = max(occupied)
    for live in plan.live_ranges.ranges if workspaces else ():
        if live.name in workspaces:
            for position in range(live.start, live.end + 1):
                occupied[position] -= WORKSPACE_BYTES
    for position, name in enumerate(plan.live_ranges.schedule if not workspaces else ()):
        if name in products:
            occupied[position] += WORKSPACE_BYTES
    more_bytes = max(occupied) - peak
    return OtherPlan(chance, more_bytes) if more_bytes else None


def _workspaces(plan: Plan) -> frozenset[str]:
    """Names of the values that are workspaces of cuBLASLt."""
    return frozenset(
        value.name
        for allocation in plan.allocations
        for value in allocation.values
        if value.size_bytes == WORKSPACE_BYTES
        and value.shape.element in ("s8", "u8")
        and (called := plan.instructions.get(value.instruction)) is not None
        and (called.custom_call_target or "").startswith("__cublas$lt")
    )
