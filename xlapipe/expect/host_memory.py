"""Expectations of pinned host memory."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.kept import carried, kept_in_plan
from xlapipe.expect.memory import allocations_named, describe, no_leaf_named
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.program import KeptIn, NamedValue, Program
from xlapipe.plans.wording import counted

_SCAN = (
    "scan over the layers (jax.lax.scan): XLA schedules the copies of a Python loop's layers where "
    "it wants to, here after the forward pass"
)


@dataclass(frozen=True)
class Offloaded(Expectation):
    """Each leaf named `name` (argument or output) is in pinned host memory.

    If no leaf has the name, each value of the forward pass that `checkpoint_name` gives it to is
    kept there for the backward pass.
    """

    name: str

    def _check(self, program: Program) -> Finding:
        values = program.values_named(self.name)
        if values and not allocations_named(program, self.name):
            return self._check_values(program, values)
        host = {allocation.index for allocation in program.plan.allocations_in(MemorySpace.HOST)}
        named = allocations_named(program, self.name)
        violations = [
            Violation(
                f"{path}: an allocation in host memory",
                "device memory" if allocation is not None else "no separate allocation",
                describe(allocation) if allocation is not None else "",
                program.plan.source_in(allocation) if allocation is not None else None,
                'give the argument a sharding with memory_kind="pinned_host", or return '
                "jax.device_put(value, jax.memory.Space.Host)",
            )
            for path, allocation in named
            if allocation is None or allocation.index not in host
        ]
        if not named:
            violations.append(no_leaf_named(program, self.name))
        offloaded = sum(
            allocation.size_bytes
            for _, allocation in named
            if allocation is not None and allocation.index in host
        )
        return self.finding(f"{offloaded:,} B in host memory", *violations)

    def _check_values(self, program: Program, values: tuple[NamedValue, ...]) -> Finding:
        offloaded_bytes, violations = 0, []
        for value in values:
            held = kept_in_plan(program, value, MemorySpace.HOST)
            if value.kept is KeptIn.HOST and len(held) >= value.count:
                offloaded_bytes += value.size_bytes
                continue
            found, advice = _not_offloaded(program, value, len(held))
            violations.append(Violation(f"{value}: kept in host memory", found, advice=advice))
        return self.finding(f"{offloaded_bytes:,} B in host memory", *violations)


def _not_offloaded(program: Program, value: NamedValue, count: int) -> tuple[str, str]:
    """What was found in place of an offloaded value, and what to do."""
    if value.kept is KeptIn.HOST:
        on_device = len(kept_in_plan(program, value, MemorySpace.HBM))
        return (
            f"the policy offloads {counted(value.count, 'value')}; of this size the plan has "
            f"{count} in host memory and {on_device} on the device from the forward to the "
            "backward pass",
            _SCAN,
        )
    if value.kept is KeptIn.CARRY:
        return carried(value.name)
    return (
        "it is kept on the device"
        if value.kept is KeptIn.DEVICE
        else "the backward pass does not use it, or computes it again",
        "offload it with jax.checkpoint_policies.save_and_offload_only_these_"
        f'names(names_which_can_be_offloaded=[{value.name!r}], offload_src="device", '
        'offload_dst="pinned_host", …); if the step does, a later function under '
        "jax.checkpoint keeps it as its input: give the name at that function's start",
    )
