"""XLA's own time estimates: `reification_cost` in the backend configs of a dump.

XLA writes them with xla_gpu_collect_cost_model_stats=true, for fusions only: custom calls of
cuBLAS, cuDNN and Pallas have none.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from xlapipe.plans.hlo import Instruction
from xlapipe.plans.kernel_code import StatedCost

# The key of XLA's unnamed performance model.
DEFAULT_MODEL = "default"
_INDEXING, _GEMM, _SOL = "indexing-cost-model", "experimental-gemm-cost-model", "sol"
# What jax hands to Mosaic on TPUs with a kernel; there is more behind it.
_STATED = re.compile(r'"cost_estimate":\{"bytes_accessed":"?(\d+)"?,"flops":"?(\d+)"?[,}]')
_MOST = 1 << 62  # what is not below it, such as 2^63 - 1, says that nothing is known
_COLLECTED = '"reification_cost":[{'


def estimates_of(instruction: Instruction) -> Mapping[str, float]:
    """Seconds of one launch by XLA's name of the model; empty if the dump has none."""
    if _COLLECTED not in instruction.backend_config:
        return {}
    try:
        costs: Any = json.loads(instruction.backend_config)["reification_cost"]
        return {cost["name"] or DEFAULT_MODEL: cost["exec_time_us"] * 1e-6 for cost in costs}
    except (ValueError, KeyError, TypeError):
        return {}


def stated_in(call: Instruction) -> StatedCost | None:
    """The `cost_estimate` of a Pallas kernel for TPUs, from its call; None if it cannot be one."""
    match = _STATED.search(call.backend_config) if call.custom_call_target else None
    accessed, flops = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if not 0 < max(accessed, flops) < _MOST:
        return None
    return StatedCost(call.kernel_name or call.name, None, accessed, flops)


def estimate_of(estimates: Mapping[str, float]) -> float | None:
    """The estimate of the model with the smallest error for the kind of kernel; None without any.

    XLA's unnamed model for Triton gemms, the indexing model for other Triton fusions, and `sol` for
    the rest; the measured errors of each are in docs/lab/time.md.
    """
    if _GEMM in estimates:
        preferred = (DEFAULT_MODEL, _INDEXING)
    elif _INDEXING in estimates:
        preferred = (_INDEXING, DEFAULT_MODEL)
    else:
        preferred = (_SOL, DEFAULT_MODEL)
    return next((estimates[model] for model in preferred if model in estimates), None)
