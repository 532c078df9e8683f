"""Expectations of the arguments and outputs that a name matches, taken together."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import no_leaf_named
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class LeavesTotal(Expectation):
    """All leaves named `name`, arguments and outputs, total exactly `total_bytes`.

    Counted are the bytes on one device of shapes and dtypes, without padding: for an array sharded
    over N devices, 1/N of its bytes. `AllocationOf` compares the allocation of each leaf.
    """

    name: str
    total_bytes: int

    def check(self, program: Program) -> Finding:
        leaves = program.leaves_named(self.name)
        found_bytes = sum(leaf.size_bytes for leaf in leaves)
        measured = f"{counted(len(leaves), 'leaf', 'leaves')}, {found_bytes:,} B"
        if not leaves:
            return self.finding(measured, no_leaf_named(program, self.name))
        if found_bytes == self.total_bytes:
            return self.finding(measured)
        largest = max(leaves, key=lambda leaf: leaf.size_bytes)
        return self.finding(
            measured,
            Violation(
                f"{self.name}: {self.total_bytes:,} B in total",
                f"{found_bytes:,} B, {found_bytes - self.total_bytes:+,} B",
                f"the largest is {largest.path}, {largest.size_bytes:,} B",
                advice="compare shapes and dtypes of the leaves with the formula",
            ),
        )
