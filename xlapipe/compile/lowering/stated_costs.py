"""What the author states of Pallas kernels: `pl.CostEstimate`, which jax drops for GPUs."""

from collections.abc import Iterator, Mapping
from typing import Any

from xlapipe.compile.lowering.pallas_calls import pallas_calls
from xlapipe.plans.kernel_code import StatedCost


def stated_costs(closed_jaxpr: Any, kernel_bytes: Mapping[str, int]) -> tuple[StatedCost, ...]:
    """The stated costs of a traced program's Pallas kernels.

    Kernels of one name and size of results whose estimates differ have none.

    Args:
      closed_jaxpr: the `jaxpr` of a `jax.stages.Traced`.
      kernel_bytes: the workload's bytes by name of the kernel; they replace estimates.
    """
    costs: dict[tuple[str, int | None], set[StatedCost]] = {}
    for cost in _estimates(closed_jaxpr.jaxpr):
        if cost.kernel not in kernel_bytes:
            costs.setdefault((cost.kernel, cost.result_bytes), set()).add(cost)
    stated = [StatedCost(name, None, size) for name, size in kernel_bytes.items()]
    return (*(cost for (cost, *others) in costs.values() if not others), *stated)


def _estimates(jaxpr: Any) -> Iterator[StatedCost]:
    for equation in pallas_calls(jaxpr, ("pallas_call", "mpmd_map")):
        estimate = equation.params.get("cost_estimate")
        if estimate is not None:
            results = [variable.aval for variable in equation.outvars]
            yield StatedCost(
                equation.params["jaxpr"].debug_info.func_name,
                sum(aval.size * aval.dtype.itemsize for aval in results),
                int(estimate.bytes_accessed),
                int(estimate.flops),
            )
