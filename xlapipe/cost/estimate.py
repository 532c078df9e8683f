"""XLA's own time estimates: `reification_cost` in the backend configs of a dump.

XLA writes them with xla_gpu_collect_cost_model_stats=true, for fusions only: custom calls of
cuBLAS, cuDNN and Pallas have none.
"""

import json
from collections.abc import Mapping
from typing import Any

from xlapipe.plan.hlo import Instruction

# XLA's performance model without a name of its own.
DEFAULT_MODEL = "default"
# The model that stands for the estimate, the first that is there; see docs/time.md for errors.
_PREFERRED = ("sol", DEFAULT_MODEL)
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
    """The estimate among those of the models; None if there is none."""
    return next((estimates[model] for model in _PREFERRED if model in estimates), None)
