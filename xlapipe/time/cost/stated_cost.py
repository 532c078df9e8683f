"""The cost that the author of a Pallas kernel for TPUs states, in its call."""

import re

from xlapipe.plans.hlo import Instruction
from xlapipe.plans.kernel_code import StatedCost

# A field of the call's backend config, which jax writes for Mosaic.
_STATED = re.compile(r'"cost_estimate":\{"bytes_accessed":"?(\d+)"?,"flops":"?(\d+)"?[,}]')
_MOST = 1 << 62  # what is not below it, such as 2^63 - 1, says that nothing is known


def stated_in(call: Instruction) -> StatedCost | None:
    """The `cost_estimate` of a Pallas kernel for TPUs, from its call; None if it cannot be one."""
    match = _STATED.search(call.backend_config) if call.custom_call_target else None
    accessed, flops = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if not 0 < max(accessed, flops) < _MOST:
        return None
    return StatedCost(call.kernel_name or call.name, None, accessed, flops)
