"""Expectations of the arguments and outputs that a name matches, taken together."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import allocations_named, no_leaf_named
from xlapipe.expect.wording import counted
from xlapipe.plan.program import Program


@dataclass(frozen=True)
class LeavesTotal(Expectation):
    """The allocations of all leaves named `name` (arguments or outputs) total `total_bytes`.

    `AllocationOf` compares each leaf. A leaf without a separate allocation counts as 0 bytes, as
    does an allocation that an earlier leaf has.
    """

    name: str
    total_bytes: int

    def check(self, program: Program) -> Finding:
        leaves = allocations_named(program, self.name)
        allocations = {
            allocation.index: allocation for _, allocation in leaves if allocation is not None
        }
        found_bytes = sum(allocation.size_bytes for allocation in allocations.values())
        measured = f"{counted(len(leaves), 'leaf', 'leaves')}, {found_bytes:,} B"
        if not leaves:
            return self.finding(measured, no_leaf_named(program, self.name))
        if found_bytes == self.total_bytes:
            return self.finding(measured)
        largest = max(allocations.values(), key=lambda allocation: allocation.size_bytes)
        path = next(path for path, allocation in leaves if allocation is largest)
        return self.finding(
            measured,
            Violation(
                f"{self.name}: {self.total_bytes:,} B in total",
                f"{found_bytes:,} B, {found_bytes - self.total_bytes:+,} B",
                f"the largest is {path}, {largest.size_bytes:,} B",
                advice="compare shapes and dtypes of the leaves with the formula",
            ),
        )
