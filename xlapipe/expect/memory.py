"""Expectations of allocations: their sizes and their totals."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.buffers import AllocationKind, BufferAllocation
from xlapipe.plan.hlo import SourceLine
from xlapipe.plan.plan import Plan
from xlapipe.plan.program import Program


@dataclass(frozen=True)
class AllocationsAre(Expectation):
    """Allocations from index `first` on have exactly these sizes (bytes) and kinds."""

    allocations: tuple[tuple[int, tuple[str, ...]], ...]
    first: int = 0

    def check(self, program: Program) -> Finding:
        last = self.first + len(self.allocations) - 1
        found = {allocation.index: allocation for allocation in program.plan.allocations}
        violations = []
        for index, (size, kinds) in enumerate(self.allocations, self.first):
            expected = f"allocation {index}: {size:,} B, {' and '.join(kinds) or 'no kind'}"
            allocation = found.get(index)
            if allocation is None:
                violations.append(Violation(expected, "no such allocation"))
            elif allocation.size_bytes != size or set(allocation.kinds) != set(kinds):
                violations.append(
                    Violation(
                        expected,
                        f"{allocation.size_bytes:,} B, {' and '.join(allocation.kinds)}",
                        describe(allocation),
                        program.plan.source_in(allocation),
                        "compare the arguments' and outputs' shapes, dtypes and donation",
                    )
                )
        return self.finding(f"allocations {self.first} to {last} compared", *violations)


@dataclass(frozen=True)
class AllocationOf(Expectation):
    """The allocation of each leaf named `name` (argument or output) has `size_bytes`.

    On one device: of an array that is sharded over N, the N-th part.
    """

    name: str
    size_bytes: int

    def check(self, program: Program) -> Finding:
        allocations = _allocations_named(program, self.name)
        violations = [
            Violation(
                f"{path}: an allocation of {self.size_bytes:,} B",
                f"{allocation.size_bytes:,} B" if allocation else "no allocation of its own",
                describe(allocation) if allocation else "",
                program.plan.source_in(allocation) if allocation else None,
                "compare the leaf's shape and dtype with the formula",
            )
            for path, allocation in allocations
            if allocation is None or allocation.size_bytes != self.size_bytes
        ]
        if not allocations:
            violations.append(nothing_named(program, self.name))
        return self.finding(f"{len(allocations)} × {self.size_bytes:,} B", *violations)


@dataclass(frozen=True)
class NoAllocationAbove(Expectation):
    """No allocation of more than `limit_bytes`, but those of arguments or outputs excepted."""

    limit_bytes: int
    except_names: tuple[str, ...] = ()

    def check(self, program: Program) -> Finding:
        excepted = _indices_named(program, self.except_names)
        others = [a for a in program.plan.allocations if a.index not in excepted]
        violations = [
            Violation(
                f"no allocation above {self.limit_bytes:,} B{_except(self.except_names)}",
                f"{allocation.size_bytes:,} B",
                describe(allocation),
                program.plan.source_in(allocation),
                "look for a copy, a lost donation or an intermediate that was not fused",
            )
            for allocation in others
            if allocation.size_bytes > self.limit_bytes
        ]
        largest = max((a.size_bytes for a in others), default=0)
        return self.finding(f"largest {largest:,} B", *violations)


@dataclass(frozen=True)
class ParameterBytes(Expectation):
    """The parameters' allocations come to exactly `total_bytes`, on one device."""

    total_bytes: int

    def check(self, program: Program) -> Finding:
        found = program.plan.totals.parameter_bytes
        violation = Violation(
            f"parameters of {self.total_bytes:,} B",
            f"{found:,} B, {found - self.total_bytes:+,} B",
            advice="compare shapes and dtypes of the arguments; unused arguments are dropped",
        )
        return self.finding(f"{found:,} B", *([violation] if found != self.total_bytes else []))


@dataclass(frozen=True)
class TempAtMost(Expectation):
    """Temporary memory is at most `limit_bytes`."""

    limit_bytes: int

    def check(self, program: Program) -> Finding:
        found = program.plan.totals.temp_bytes
        if found <= self.limit_bytes:
            return self.finding(f"{found:,} B")
        return self.finding(
            f"{found:,} B",
            Violation(
                f"temp of at most {self.limit_bytes:,} B",
                f"{found:,} B, {found - self.limit_bytes:,} B too many",
                *_largest_temp_value(program.plan),
                "see `xlapipe show` for what lies in the temp allocation",
            ),
        )


@dataclass(frozen=True)
class TotalWithin(Expectation):
    """All allocations together are within `relative` of `total_bytes`, on one device."""

    total_bytes: int
    relative: float

    def check(self, program: Program) -> Finding:
        found = program.plan.totals.total_allocation_bytes
        apart = (found - self.total_bytes) / self.total_bytes
        violation = Violation(
            f"a total within {self.relative:.2%} of {self.total_bytes:,} B",
            f"{found:,} B, {apart:+.3%}",
            advice="see `xlapipe show` for the largest allocations",
        )
        beyond = abs(apart) > self.relative
        return self.finding(f"{found:,} B, {apart:+.4%}", *([violation] if beyond else []))


@dataclass(frozen=True)
class BeyondAtMost(Expectation):
    """What is allocated beyond parameters and the named outputs is at most `limit_bytes`."""

    limit_bytes: int
    names: tuple[str, ...] = ()

    def check(self, program: Program) -> Finding:
        named = _indices_named(program, self.names)
        beyond = [
            allocation
            for allocation in program.plan.allocations
            if allocation.index not in named and not allocation.is_a(AllocationKind.PARAMETER)
        ]
        found = sum(allocation.size_bytes for allocation in beyond)
        if found <= self.limit_bytes:
            return self.finding(f"{found:,} B")
        largest = max(beyond, key=lambda allocation: allocation.size_bytes)
        return self.finding(
            f"{found:,} B",
            Violation(
                f"at most {self.limit_bytes:,} B beyond parameters{_except(self.names, ' and ')}",
                f"{found:,} B, {found - self.limit_bytes:,} B too many",
                describe(largest),
                program.plan.source_in(largest),
                "see `xlapipe show` for what lies in the largest allocations",
            ),
        )


def describe(allocation: BufferAllocation) -> str:
    """`allocation 3 (maybe-live-out), largest value fusion.2 bf16[…]`."""
    kinds = " and ".join(allocation.kinds)
    text = f"allocation {allocation.index}" + (f" ({kinds})" if kinds else "")
    largest = _largest_value(allocation)
    return text if largest is None else f"{text}, value {largest[0]} {largest[1]}"


def _largest_value(allocation: BufferAllocation) -> tuple[str, str] | None:
    value = max(allocation.values, key=lambda value: value.size_bytes, default=None)
    return None if value is None else (value.name, value.shape)


def _largest_temp_value(plan: Plan) -> tuple[str, SourceLine | None]:
    temps = [a for a in plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)]
    largest = max(temps, key=lambda allocation: allocation.size_bytes, default=None)
    return ("", None) if largest is None else (describe(largest), plan.source_in(largest))


def _allocations_named(program: Program, name: str) -> list[tuple[str, BufferAllocation | None]]:
    """Path and allocation of every argument and output leaf that `name` stands for."""
    plan = program.plan
    found: list[tuple[str, BufferAllocation | None]] = [
        (leaf.path, plan.parameter_allocation(leaf.parameter_number))
        for leaf in program.arguments_named(name)
    ]
    found.extend(
        (leaf.path, plan.output_allocation(leaf.index, of=len(program.outputs)))
        for leaf in program.outputs_named(name)
    )
    return found


def _indices_named(program: Program, names: tuple[str, ...]) -> set[int]:
    return {
        allocation.index
        for name in names
        for _, allocation in _allocations_named(program, name)
        if allocation is not None
    }


def nothing_named(program: Program, name: str) -> Violation:
    paths = [leaf.path for leaf in program.arguments] + [leaf.path for leaf in program.outputs]
    listed = ", ".join(paths[:8]) + (f", … {len(paths)} in all" if len(paths) > 8 else "")
    return Violation(
        f"an argument or output named {name!r}",
        f"the program has {listed or 'no recorded names'}",
        advice="name a leaf by the function's parameter and its path, e.g. cache[0]['k'], out[1]",
    )


def _except(names: tuple[str, ...], joined: str = ", but ") -> str:
    return f"{joined}{', '.join(names)}" if names else ""
