"""Model FLOPs of a step: the products of the program as lowered, before XLA's first pass.

What XLA computes again, or in parts, does not count, nor what `jax.checkpoint` recomputes.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from xlapipe.devices.targets.device import Device
from xlapipe.plans import HloModule, Plan
from xlapipe.plans.loops import executions
from xlapipe.plans.opcodes import CONTRACTS
from xlapipe.time.cost.flops import VECTOR, flops_of, type_of
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.cost.step_cost import StepCost

_NUMBERS = re.compile(r"\d+")
# Part of the op_names of what jax.checkpoint computes again.
_RECOMPUTED = "rematted_computation"
# Names of computations that jax lowers for one device, inside of jax.shard_map.
_OF_ONE_DEVICE = ("manual_computation_body", "shmap_body")
# Products of this share more than the compiled step has are those of several devices.
_MOST = 1.1


@dataclass(frozen=True)
class Utilisation:
    """Model FLOPs utilisation (MFU) of a step: model FLOPs / (time × peak).

    Attributes:
      flops: model FLOPs on one device by type of the operands; None if unknown.
      seconds: of them at the peak of each type; None if a peak is unknown.
      peaks: FLOP/s by type: the denominator.
      why: it cannot be computed, in words; else empty.
    """

    flops: Mapping[str, int] | None = None
    seconds: float | None = None
    peaks: Mapping[str, float] | None = None
    why: str = ""

    def share(self, step_seconds: float | None) -> float | None:
        """The share of the peak that is reached; None if it is unknown, or without products."""
        return self.seconds / step_seconds if self.seconds and step_seconds else None

    def text(self, step_seconds: float | None) -> str:
        """The share with its denominator, or why there is none; empty without products."""
        if self.why:
            return f"MFU not computed: {self.why}"
        share = self.share(step_seconds)
        if share is None or not self.peaks:
            return ""
        peaks = ", ".join(f"{name} {peak / 1e12:,.0f}" for name, peak in self.peaks.items())
        total = sum((self.flops or {}).values()) / 1e12
        return f"MFU {share:.1%} of the peak ({peaks} TFLOP/s) for {total:,.4g} TFLOP as lowered"


def utilisation(
    plan: Plan,
    cost: StepCost,
    device: Device,
    lowered: Callable[[], HloModule | None] | None,
    unknown_trips: int | None,
) -> Utilisation:
    """What the MFU of a step consists of."""
    module = lowered() if lowered is not None else None
    if module is None:
        return Utilisation(why="the dump has no module before optimisation")
    if plan.topology is None and plan.collectives:
        return Utilisation(why="the number of devices of the lowered module is unknown")
    # Hosts and GPUs, or the sides of a grid of chips.
    devices = prod(map(int, _NUMBERS.findall(plan.topology or "1")))
    flops: Counter[str] = Counter()
    recomputed, runs = 0, executions(module, unknown_trips=unknown_trips, counted=True)
    bodies = [name for name in module.computations if any(part in name for part in _OF_ONE_DEVICE)]
    local = {computation.name for computation in module.called(bodies)}
    for computation, instruction in module.instructions():
        if instruction.opcode not in CONTRACTS or computation.name not in runs:
            continue
        times = runs[computation.name]
        if times is None or instruction.contraction is None:
            what = "trips or branch are" if times is None else "dimensions are"
            return Utilisation(why=f"{instruction.name} of the lowered module: its {what} unknown")
        count = times * flops_of(instruction, computation)
        count //= 1 if computation.name in local else devices
        if _RECOMPUTED in (instruction.op_name or ""):
            recomputed += count
        else:
            flops[type_of(instruction, computation)] += count
    compiled = sum(kernel.total_flops or 0 for kernel in cost.kernels)
    if devices > 1 and flops.total() + recomputed > _MOST * compiled:
        return Utilisation(why="it is unknown how the lowered module's products are partitioned")
    for kernel in cost.kernels:
        if _is_opaque(kernel) and _RECOMPUTED not in (kernel.op_name or ""):
            flops.update(kernel.flops)
    flops.pop(VECTOR, None)  # arithmetic that counts in no MFU
    peaks = {name: device.peak_of(name) for name, count in flops.items() if count}
    known = {name: peak for name, peak in peaks.items() if peak}
    if len(known) < len(peaks):
        missing = ", ".join(sorted(peaks.keys() - known.keys()))
        return Utilisation(flops, why=f"the peak of {missing} is unknown")
    seconds = sum(flops[name] / peak for name, peak in known.items())
    return Utilisation(dict(flops), seconds, known)


def _is_opaque(kernel: KernelCost) -> bool:
    """Whether the lowered module has a call instead of the products of a kernel."""
    return kernel.stated or kernel.code is not None or kernel.kind.startswith("__cudnn$fmha")
