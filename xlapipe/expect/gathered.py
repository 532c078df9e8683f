"""Expectations of gathered data: how much of it is alive, and for how long."""

from dataclasses import dataclass

from xlapipe.expect.collectives import no_module
from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.gathered_values import GatheredValue, gathered_values, most_alive
from xlapipe.plan.program import Program


@dataclass(frozen=True)
class GatheredLiveAtMost(Expectation):
    """Values that hold gathered data take at most `limit_bytes` at any one position.

    Counted are results of all-gathers and what is moved from them, where they lie (see
    `xlapipe.plan.gathered_values`): also the stack in which a scan keeps a gathered weight for its
    backward pass.
    """

    limit_bytes: int

    def check(self, program: Program) -> Finding:
        values = gathered_values(program.plan)
        if values is None:
            return self.finding("unknown", _not_told(program))
        found, holders = most_alive(values)
        measured = f"{found:,} B of {len(values)} gathered values"
        if found <= self.limit_bytes:
            return self.finding(measured)
        largest = max(holders, key=lambda value: value.size_bytes)
        listed = ", ".join(f"{value.name} ({value.size_bytes:,} B)" for value in holders[:8])
        return self.finding(
            measured,
            Violation(
                f"at most {self.limit_bytes:,} B of gathered values alive at once",
                f"{found:,} B: {listed}" + (f", … {len(holders)}" if len(holders) > 8 else ""),
                _where(largest),
                largest.collective.source,
                "gather again in the backward pass instead of saving the weight (jax.checkpoint "
                "with a policy that saves no gathered weight), and gather where it is used",
            ),
        )


@dataclass(frozen=True)
class GatheredEndAtUse(Expectation):
    """Every value that holds gathered data ends at an instruction that reads it.

    That is, none is handed out as an output or lives to the end of the step. A loop that reads it
    at each trip is such an instruction.
    """

    def check(self, program: Program) -> Finding:
        values = gathered_values(program.plan)
        if values is None:
            return self.finding("unknown", _not_told(program))
        violations = [
            Violation(
                f"{value.name} ({value.size_bytes:,} B) ends at its last reader",
                "it is an output, or lives to the end of the step",
                _where(value),
                value.collective.source,
                "return the shard, not the gathered array",
            )
            for value in values
            if value.is_output
        ]
        return self.finding(f"{len(values)} gathered values", *violations)


def _where(value: GatheredValue) -> str:
    return (
        f"allocation {value.allocation}, value {value.name}, alive at positions {value.start} to "
        f"{value.end}" + (f" ({value.ends_at})" if value.ends_at else "")
    )


def _not_told(program: Program) -> Violation:
    if program.plan.collectives is None:
        return no_module()
    return Violation(
        "live ranges of the gathered values",
        "the dump holds none",
        advice="put XLA's *live-range.txt beside the dump",
    )
