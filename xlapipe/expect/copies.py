"""Expectations of copies: none that is large, none of data that was never written."""

from dataclasses import dataclass

from xlapipe.expect.collectives import no_module
from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.copies import find_copies
from xlapipe.plan.program import Program
from xlapipe.plan.undefined_copies import undefined_copies


@dataclass(frozen=True)
class NoCopyAbove(Expectation):
    """No instruction that only moves data writes a value of more than `limit_bytes`."""

    limit_bytes: int

    def check(self, program: Program) -> Finding:
        copies = find_copies(program.plan)
        violations = [
            Violation(
                f"no copy above {self.limit_bytes:,} B",
                f"{copy.copied_bytes:,} B copied by {copy.instruction}",
                f"allocation {copy.allocation}, value {copy.value}"
                + (f" ({copy.op_name})" if copy.op_name else ""),
                copy.source,
                "donate the buffer and update it in place (`x.at[i].set(v)`), "
                "and read nothing of the old value afterwards",
            )
            for copy in copies
            if copy.copied_bytes > self.limit_bytes
        ]
        largest = copies[0].copied_bytes if copies else 0
        return self.finding(f"{len(copies)} copies, largest {largest:,} B", *violations)


@dataclass(frozen=True)
class NoUndefinedCopy(Expectation):
    """Nothing copies, broadcasts or otherwise moves memory that was never written.

    Such memory is that of `jax.lax.empty` and of XLA's AllocateBuffer.
    """

    def check(self, program: Program) -> Finding:
        copies = undefined_copies(program.plan)
        if copies is None:
            return self.finding("unknown", no_module())
        violations = [
            Violation(
                "no copy of undefined data",
                f"{copy.instruction} writes {copy.size_bytes:,} B of {copy.buffer}",
                f"instruction {copy.instruction}" + (f" ({copy.op_name})" if copy.op_name else ""),
                copy.source,
                "return or donate the buffer once, and write to it before it is read",
            )
            for copy in copies
        ]
        return self.finding(f"{len(copies)} copies of undefined data", *violations)
