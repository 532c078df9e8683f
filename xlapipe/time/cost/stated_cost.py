"""The cost that the author of a Pallas kernel for TPUs states, in its call."""

import re

from xlapipe.plans.hlo import Instruction
from xlapipe.plans.kernel_code import StatedCost

# A field of the call's backend config, which jax writes for Mosaic.
_STATED = re.compile(r'"cost_estimate":\{"bytes_accessed":"?(-?\d+)"?,"flops":"?(-?\d+)"?[,}]')


def stated_in(call: Instruction) -> StatedCost | None:
    """The `cost_estimate` of a Pallas kernel for TPUs, from its call, even if it cannot be one."""
    match = _STATED.search(call.backend_config) if call.custom_call_target else None
    if match is None:
        return None
    return StatedCost(call.kernel_name or call.name, None, int(match[1]), int(match[2]))
