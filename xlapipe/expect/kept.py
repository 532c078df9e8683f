"""Expectations of what is in the host's memory, and kept for the backward pass."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_live_ranges
from xlapipe.expect.memory import allocations_named, describe, no_leaf_named
from xlapipe.plans.kept_values import KeptValue, kept_values, of_size
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.program import KeptIn, NamedValue, Program
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class Saved(Expectation):
    """The forward pass keeps each value named `name` in device memory for the backward pass.

    The name is that of `jax.ad_checkpoint.checkpoint_name`. jax must keep the value, and the plan
    must have a value of its size that is alive from the forward to the backward pass: XLA may also
    recompute a value inside of kernels.
    """

    name: str

    def _check(self, program: Program) -> Finding:
        values = _values_named(program, self.name)
        saved_bytes, violations = 0, []
        for value in values:
            held = _kept_in_plan(program, value, MemorySpace.HBM)
            if value.kept is KeptIn.DEVICE and len(held) >= value.count:
                saved_bytes += value.size_bytes
                continue
            found, advice = _not_saved(value, len(held))
            violations.append(Violation(f"{value}: kept on the device", found, advice=advice))
        return self.finding(f"{saved_bytes:,} B", *violations)


@dataclass(frozen=True)
class NotSaved(Expectation):
    """No value named `name` is kept for the backward pass, on the device or in the host's memory.

    The name is that of `jax.ad_checkpoint.checkpoint_name`. A value is kept if jax keeps it and the
    plan has a value of its size that is alive from the forward to the backward pass.
    """

    name: str

    def _check(self, program: Program) -> Finding:
        values = _values_named(program, self.name)
        violations = []
        for value in values:
            if value.kept in (None, KeptIn.CARRY):
                continue
            spaces = (MemorySpace.HOST, MemorySpace.HBM)
            # XLA may leave a value on the device that jax moves to the host.
            own_spaces = spaces if value.kept is KeptIn.HOST else spaces[1:]
            held = [h for space in own_spaces for h in _kept_in_plan(program, value, space)]
            if held:
                violations.append(
                    Violation(
                        f"{value}: computed again in the backward pass",
                        f"{value.size_bytes:,} B of {counted(value.count, 'value')} are kept in "
                        f"{'host' if held[0].space is MemorySpace.HOST else 'device'} memory",
                        f"allocation {held[0].allocation.index}, value {held[0].value.name}",
                        program.plan.nearest_source(held[0].value.name),
                        "put the computation under jax.checkpoint with a policy that leaves "
                        f"{self.name!r} out",
                        size_bytes=value.size_bytes,
                    )
                )
        kept_bytes = sum(violation.size_bytes or 0 for violation in violations)
        return self.finding(f"{kept_bytes:,} B", *violations)


def _kept_in_plan(program: Program, value: NamedValue, space: MemorySpace) -> tuple[KeptValue, ...]:
    """The values of a plan that can hold one of the named values in a memory."""
    elements = value.trips
    for dim in value.shape:
        elements *= dim
    several = any(leaf.spec is not None for leaf in program.arguments)
    inside = [held for held in kept_values(program.plan) if held.space is space]
    return of_size(inside, elements, value.size_bytes // value.count, several_devices=several)


def _carried(name: str) -> tuple[str, str]:
    """What is kept in place of a value that a loop's body returns as its carry, and what to do."""
    return (
        "the body returns it as the loop's carry, and the loop keeps the carry that each iteration "
        "gets, on the device",
        f"give the name at the body's start, to the carry that it gets: x = checkpoint_name(x, "
        f"{name!r})",
    )


def _not_saved(value: NamedValue, count: int) -> tuple[str, str]:
    """What was found in place of a saved value, and what to do."""
    if value.kept is KeptIn.HOST:
        return "the policy offloads it to the host's memory", "expect Offloaded(name) instead"
    if value.kept is KeptIn.CARRY:
        return _carried(value.name)
    if value.kept is None:
        return (
            "the backward pass does not use it, or computes it again",
            "give the policy of jax.checkpoint its name, e.g. "
            f"jax.checkpoint_policies.save_only_these_names({value.name!r})",
        )
    return (
        f"jax keeps {counted(value.count, 'value')}, and the plan has {count} of this size from "
        "the forward to the backward pass: XLA computes others again inside of kernels",
        "read the first table of `xlapipe choose`, which lists what is kept instead",
    )


def _values_named(program: Program, name: str) -> tuple[NamedValue, ...]:
    values = program.values_named(name)
    if not values:
        names = ", ".join(dict.fromkeys(value.name for value in program.facts.named_values))
        missing = Violation(
            f"a value of the forward pass named {name!r}",
            f"the step names {names}" if names else "the dump records no named value",
            advice=f"name the value with jax.ad_checkpoint.checkpoint_name(value, {name!r}), and "
            "make the dump again",
        )
        raise UnknownError(missing, measured="0 B")
    if program.plan.live_ranges is None:
        raise no_live_ranges("the kept values")
    return values


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
            held = _kept_in_plan(program, value, MemorySpace.HOST)
            if value.kept is KeptIn.HOST and len(held) >= value.count:
                offloaded_bytes += value.size_bytes
                continue
            found, advice = _not_offloaded(program, value, len(held))
            violations.append(Violation(f"{value}: kept in host memory", found, advice=advice))
        return self.finding(f"{offloaded_bytes:,} B in host memory", *violations)


def _not_offloaded(program: Program, value: NamedValue, count: int) -> tuple[str, str]:
    """What was found in place of an offloaded value, and what to do."""
    if value.kept is KeptIn.HOST:
        on_device = len(_kept_in_plan(program, value, MemorySpace.HBM))
        return (
            f"the policy offloads {counted(value.count, 'value')}; of this size the plan has "
            f"{count} in host memory and {on_device} on the device from the forward to the "
            "backward pass",
            _SCAN,
        )
    if value.kept is KeptIn.CARRY:
        return _carried(value.name)
    return (
        "it is kept on the device"
        if value.kept is KeptIn.DEVICE
        else "the backward pass does not use it, or computes it again",
        "offload it with jax.checkpoint_policies.save_and_offload_only_these_"
        f'names(names_which_can_be_offloaded=[{value.name!r}], offload_src="device", '
        'offload_dst="pinned_host", …); if the step does, a later function under '
        "jax.checkpoint keeps it as its input: give the name at that function's start",
    )
