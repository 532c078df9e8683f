"""Error bound of a plan's memory against the device's, by the evidence for its results.

Measured on programs whose plan an H200 or an H100 has recorded, each predicted from other
programs alone (`tests/gpu/predicted_locks.json`). Nearly all errors are whole workspaces of
cuBLASLt, or come from fusions that XLA splits for it.
"""

from collections.abc import Mapping

from xlapipe.plans import Plan
from xlapipe.plans.gemms import GemmBackend
from xlapipe.time.predicted_locks.basis import is_guessed

WORKSPACE_BYTES = 33_554_432
"""Workspace that cuBLASLt's products share on a GPU of compute capability 9.0."""
SHARE_PREDICTED, SHARE_UNTUNED = 0.02, 0.2
"""Further errors, as shares of the temporary memory."""


_NOT_TUNED = (GemmBackend.REDUCE, GemmBackend.MXU)


def plan_error_bytes(
    plan: Plan, *, tuned: bool | None, predicted_lock: Mapping[str, int] | None
) -> int:
    """The error that all recorded programs with predicted tuning stay below, and most untuned ones.

    Returns:
      0 with a device's results, and for a plan without products and convolutions. With a predicted
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
