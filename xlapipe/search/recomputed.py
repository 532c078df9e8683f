"""The kernels that XLA computes a second time to save memory, and what they cost."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xlapipe.plans import Plan
from xlapipe.time.cost import StepCost

# HloRematerialization names a copy of an instruction after the original, e.g. `fusion.3.remat2`.
_REMATERIALISED = re.compile(r"\.remat(?![a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedKernel:
    """A kernel that is computed a second time.

    Attributes:
      source: line of the program that the kernel computes, relative to the current folder; None
        if unknown.
      value_bytes: size of its result, which XLA does not keep in between; None if unknown.
      launches: in a step.
      floor_seconds: floor of all launches; None if the GPU's speeds are unknown.
    """

    instruction: str
    op_name: str | None
    source: str | None
    value_bytes: int | None
    launches: int
    floor_seconds: float | None


def rematerialised_names(plan: Plan) -> tuple[str, ...]:
    """Instructions of HloRematerialization, also those that launch nothing."""
    return tuple(name for name in plan.instructions if _REMATERIALISED.search(name))


def recomputed_kernels(plan: Plan, cost: StepCost | None) -> tuple[RecomputedKernel, ...]:
    """The kernels among them, the longest floor first."""
    kernels = _kernels(plan, cost) if cost is not None else ()
    return tuple(sorted(kernels, key=lambda kernel: -(kernel.floor_seconds or 0.0)))


def _kernels(plan: Plan, cost: StepCost) -> Iterator[RecomputedKernel]:
    names = set(rematerialised_names(plan))
    for kernel in cost.kernels:
        if kernel.name in names:
            yield RecomputedKernel(
                instruction=kernel.name,
                op_name=kernel.op_name,
                source=relative(str(kernel.source)) if kernel.source is not None else None,
                value_bytes=plan.instructions[kernel.name].shape.size_bytes,
                launches=kernel.launches,
                floor_seconds=kernel.floor_seconds,
            )


def relative(source: str) -> str:
    """A source line, relative to the current folder."""
    return source.removeprefix(f"{Path.cwd()}/")
