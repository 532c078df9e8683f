"""Expectations of what the forward pass keeps for the backward pass."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_live_ranges
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
            held = kept_in_plan(program, value, MemorySpace.HBM)
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
            held = [h for space in own_spaces for h in kept_in_plan(program, value, space)]
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


def kept_in_plan(program: Program, value: NamedValue, space: MemorySpace) -> tuple[KeptValue, ...]:
    """The values of a plan that can hold one of the named values in a memory."""
    elements = value.trips
    for dim in value.shape:
        elements *= dim
    several = any(leaf.spec is not None for leaf in program.arguments)
    inside = [held for held in kept_values(program.plan) if held.space is space]
    return of_size(inside, elements, value.size_bytes // value.count, several_devices=several)


def carried(name: str) -> tuple[str, str]:
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
        return carried(value.name)
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
