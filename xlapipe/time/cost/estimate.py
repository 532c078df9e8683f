"""XLA's own time estimates: `reification_cost` in the backend configs of a dump.

XLA writes them with xla_gpu_collect_cost_model_stats=true, for fusions only: custom calls of
cuBLAS, cuDNN and Pallas have none.
"""

import json
from collections.abc import Mapping
from typing import Any

from xlapipe.plans.hlo import Instruction

# The key of XLA's unnamed performance model.
DEFAULT_MODEL = "default"
_INDEXING, _GEMM, _SOL = "indexing-cost-model", "experimental-gemm-cost-model", "sol"
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
