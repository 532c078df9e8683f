"""Expectations of gathered values: how many bytes are alive, and for how long."""

from dataclasses import dataclass

from xlapipe.expect.collectives import collectives_of
from xlapipe.expect.expectation import Expectation, Finding, Violation, no_live_ranges
from xlapipe.plans.gathered_values import GatheredValue, gathered_values, most_alive
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted

# Gathered values that a violation lists.
_MAX_LISTED = 8


@dataclass(frozen=True)
class GatheredLiveAtMost(Expectation):
    """Gathered values take at most `limit_bytes` at any schedule position.

    Gathered values are the results of all-gathers and the values moved from them, e.g. the stack
    in which a scan saves a gathered weight for its backward pass (see
    `xlapipe.plans.gathered_values`).
    """

    limit_bytes: int

    def _check(self, program: Program) -> Finding:
        values = _values(program)
        alive_bytes, alive = most_alive(values)
        measured = f"{alive_bytes:,} B of {counted(len(values), 'gathered value')}"
        if alive_bytes <= self.limit_bytes:
            return self.finding(measured)
        largest = max(alive, key=lambda held: held.value.size_bytes)
        listed = ", ".join(map(_named, alive[:_MAX_LISTED]))
        return self.finding(
            measured,
            Violation(
                f"at most {self.limit_bytes:,} B of gathered values alive at the same time",
                f"{alive_bytes:,} B: {listed}"
                + (f", … {len(alive)} in total" if len(alive) > _MAX_LISTED else ""),
                _where(largest),
                largest.collective.source,
                "gather each weight where it is used, and again in the backward pass instead of "
                "saving it (jax.checkpoint with a policy that saves no gathered weight)",
            ),
        )


@dataclass(frozen=True)
class GatheredEndAtUse(Expectation):
    """Every gathered value's live range ends at an instruction that reads it.

    So no gathered value is an output or alive to the end of the step. A loop that reads the value
    in each trip counts as one instruction.
    """

    def _check(self, program: Program) -> Finding:
        values = _values(program)
        violations = [
            Violation(
                f"{_named(value)} ends at its last reader",
                "it is an output, or alive to the end of the step",
                _where(value),
                value.collective.source,
                "return the shard, not the gathered array",
            )
            for value in values
            if value.is_output
        ]
        return self.finding(counted(len(values), "gathered value"), *violations)


def _named(held: GatheredValue) -> str:
    return f"{held.value.name} ({held.value.size_bytes:,} B)"


def _where(held: GatheredValue) -> str:
    return (
        f"allocation {held.allocation.index}, value {held.value.name}, alive at positions "
        f"{held.start} to {held.end}" + (f" ({held.ends_at})" if held.ends_at else "")
    )


def _values(program: Program) -> tuple[GatheredValue, ...]:
    values = gathered_values(program.plan)
    if values is None:
        collectives_of(program)
        raise no_live_ranges("the gathered values")
    return values
