"""Expectations of pinned host memory."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import allocations_named, describe, no_leaf_named
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.program import Program


@dataclass(frozen=True)
class Offloaded(Expectation):
    """Each leaf named `name` (argument or output) is in pinned host memory."""

    name: str

    def check(self, program: Program) -> Finding:
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


@dataclass(frozen=True)
class HostAtMost(Expectation):
    """The allocations in pinned host memory total at most `limit_bytes`, on one device."""

    limit_bytes: int

    def check(self, program: Program) -> Finding:
        host_bytes = program.plan.spaces[MemorySpace.HOST].total_bytes
        if host_bytes <= self.limit_bytes:
            return self.finding(f"{host_bytes:,} B")
        allocations = program.plan.allocations_in(MemorySpace.HOST)
        largest = max(allocations, key=lambda allocation: allocation.size_bytes)
        return self.finding(
            f"{host_bytes:,} B",
            Violation(
                f"host memory of at most {self.limit_bytes:,} B",
                f"{host_bytes:,} B, {host_bytes - self.limit_bytes:,} B too many",
                describe(largest),
                program.plan.source_in(largest),
                "offload fewer values, or smaller ones",
            ),
        )
