"""The persistent kernel's workload, broken: it reads a copy of the weights."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from models.qwen3.workloads import qwen3_generate_persistent
from xlapipe import Workload


def copied_weights() -> Workload:
    """Selects each weight or its negative by the position, which XLA does not know."""
    workload = qwen3_generate_persistent(layers=1)

    def generate(params: Any, cache: Any, state: Any) -> Any:
        valid = state["positions"][0] >= 0
        copies = jax.tree.map(lambda weight: jnp.where(valid, weight, -weight), params)
        return workload.fn(copies, cache, state)

    return replace(workload, name="copied-weights", fn=generate)
