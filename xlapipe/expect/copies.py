"""Expectations of copies: no large copies, and no copies of undefined data."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation, no_module
from xlapipe.plans.copies import find_copies, undefined_copies
from xlapipe.plans.copy_advice import advice_against, copied_leaves
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class NoCopyAbove(Expectation):
    """No instruction that only moves data writes a value of more than `limit_bytes`."""

    limit_bytes: int

    def _check(self, program: Program) -> Finding:
        copies = find_copies(program.plan)
        violations = [
            Violation(
                f"no copy above {self.limit_bytes:,} B",
                f"{copy.copied_bytes:,} B{copy.trips_text} copied by {copy.instruction}"
                + copied_leaves(program, copy),
                f"allocation {copy.allocation}, value {copy.value}"
                + (f" ({copy.op_name})" if copy.op_name else ""),
                copy.source,
                advice_against(program, copy),
                f"copies at {copy.source}" if copy.source is not None else "copies",
                copy.copied_bytes,
                copy.instruction,
            )
            for copy in copies
            if copy.copied_bytes > self.limit_bytes
        ]
        largest = copies[0].copied_bytes if copies else 0
        return self.finding(
            f"{counted(len(copies), 'copy', 'copies')}, largest {largest:,} B", *violations
        )


@dataclass(frozen=True)
class NoUndefinedCopy(Expectation):
    """No instruction copies, broadcasts or otherwise moves memory that was never written.

    Such memory comes from `jax.lax.empty`, i.e. XLA's AllocateBuffer.
    """

    def _check(self, program: Program) -> Finding:
        copies = undefined_copies(program.plan)
        if copies is None:
            raise no_module("instructions")
        violations = [
            Violation(
                "no copy of undefined data",
                f"{copy.instruction} copies {copy.size_bytes:,} B of undefined data "
                f"from {copy.buffer}",
                f"instruction {copy.instruction}" + (f" ({copy.op_name})" if copy.op_name else ""),
                copy.source,
                "write to the buffer before it is read, and return or donate it only once",
            )
            for copy in copies
        ]
        return self.finding(
            f"{counted(len(copies), 'copy', 'copies')} of undefined data", *violations
        )
