"""Expectations of memory: sizes and kinds of allocations, and totals."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plans import AllocationKind, BufferAllocation, Program
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.missing_memory import missing_lines
from xlapipe.plans.padding import parameter_padding_bytes
from xlapipe.plans.wording import counted
from xlapipe.time.predicted_locks.plan_error import other_plan

# Leaves or, of more, arguments that an error lists.
_MAX_LISTED = 8
# Values that advice names.
_MAX_VALUES = 3


@dataclass(frozen=True)
class AllocationsAre(Expectation):
    """The allocations from index `first` on have exactly these sizes (bytes) and kinds."""

    allocations: tuple[tuple[int, tuple[str, ...]], ...]
    first: int = 0

    def _check(self, program: Program) -> Finding:
        last = self.first + len(self.allocations) - 1
        by_index = {allocation.index: allocation for allocation in program.plan.allocations}
        violations = []
        for index, (size, kinds) in enumerate(self.allocations, self.first):
            expected = f"allocation {index}: {size:,} B, {' and '.join(kinds) or 'no kind'}"
            allocation = by_index.get(index)
            if allocation is None:
                violations.append(Violation(expected, "no such allocation"))
            elif allocation.size_bytes != size or set(allocation.kinds) != set(kinds):
                violations.append(
                    Violation(
                        expected,
                        f"{allocation.size_bytes:,} B, {' and '.join(allocation.kinds)}",
                        describe(allocation),
                        program.plan.source_in(allocation),
                        "compare the shapes, dtypes and donation of arguments and outputs",
                    )
                )
        return self.finding(f"allocations {self.first} to {last} compared", *violations)


@dataclass(frozen=True)
class AllocationOf(Expectation):
    """The allocation of each leaf named `name` (argument or output) has `size_bytes`.

    On one device: for an array sharded over N devices, 1/N of its bytes.
    """

    name: str
    size_bytes: int

    def _check(self, program: Program) -> Finding:
        allocations = allocations_named(program, self.name)
        violations = [
            Violation(
                f"{path}: an allocation of {self.size_bytes:,} B",
                f"{allocation.size_bytes:,} B" if allocation else "no separate allocation",
                describe(allocation) if allocation else "",
                program.plan.source_in(allocation) if allocation else None,
                "compare the leaf's shape and dtype with the formula",
            )
            for path, allocation in allocations
            if allocation is None or allocation.size_bytes != self.size_bytes
        ]
        if not allocations:
            violations.append(no_leaf_named(program, self.name))
        return self.finding(f"{len(allocations)} × {self.size_bytes:,} B", *violations)


@dataclass(frozen=True)
class LeavesTotal(Expectation):
    """All leaves named `name`, arguments and outputs, total exactly `total_bytes`.

    Counted are the bytes on one device of shapes and dtypes, without padding: for an array sharded
    over N devices, 1/N of its bytes. `AllocationOf` compares the allocation of each leaf.
    """

    name: str
    total_bytes: int

    def _check(self, program: Program) -> Finding:
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


@dataclass(frozen=True)
class NoAllocationAbove(Expectation):
    """No allocation is larger than `limit_bytes`, except those of leaves in `except_names`."""

    limit_bytes: int
    except_names: tuple[str, ...] = ()

    def _check(self, program: Program) -> Finding:
        excepted = _indices_named(program, self.except_names)
        others = [a for a in program.plan.allocations if a.index not in excepted]
        violations = [
            Violation(
                f"no allocation above {self.limit_bytes:,} B{_except(self.except_names)}",
                f"{allocation.size_bytes:,} B",
                describe(allocation),
                program.plan.source_in(allocation),
                "look for a copy, a failed donation or an intermediate that was not fused",
            )
            for allocation in others
            if allocation.size_bytes > self.limit_bytes
        ]
        largest = max((a.size_bytes for a in others), default=0)
        return self.finding(f"largest {largest:,} B", *violations)


@dataclass(frozen=True)
class ParameterBytes(Expectation):
    """The parameters in device memory total exactly `total_bytes`, on one device.

    Attributes:
      padded: count the padding of a TPU's tiles as well; without it the same formula holds on every
        platform.
    """

    total_bytes: int
    padded: bool = False

    def _check(self, program: Program) -> Finding:
        allocated_bytes = program.plan.totals.parameter_bytes
        padding = 0 if self.padded else parameter_padding_bytes(program.plan)
        parameter_bytes = allocated_bytes - padding
        measured = f"{parameter_bytes:,} B" + (f", and {padding:,} B of padding" if padding else "")
        if parameter_bytes == self.total_bytes:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"parameters of {self.total_bytes:,} B in total",
                f"{parameter_bytes:,} B, {parameter_bytes - self.total_bytes:+,} B",
                advice="compare shapes and dtypes of the arguments; jax drops unused arguments",
            ),
        )


@dataclass(frozen=True)
class TempAtMost(Expectation):
    """Temporary memory is at most `limit_bytes`."""

    limit_bytes: int

    def _check(self, program: Program) -> Finding:
        temps = [a for a in program.plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)]
        expected = f"temp memory of at most {self.limit_bytes:,} B"
        size_bytes = program.plan.totals.temp_bytes
        return _at_most(self, program, size_bytes, self.limit_bytes, expected, temps)


@dataclass(frozen=True)
class TotalWithin(Expectation):
    """The total of all allocations is within `relative` of `total_bytes`, on one device."""

    total_bytes: int
    relative: float

    def _check(self, program: Program) -> Finding:
        allocated_bytes = program.plan.totals.total_allocation_bytes

        # A float's product may fall below a limit that the total meets exactly.
        limit_bytes = Decimal(str(self.relative)) * self.total_bytes

        def is_within(size_bytes: int) -> bool:
            return abs(size_bytes - self.total_bytes) <= limit_bytes

        deviation = (allocated_bytes - self.total_bytes) / self.total_bytes
        measured = f"{allocated_bytes:,} B, {deviation:+.4%}"
        if is_within(allocated_bytes):
            finding = self.finding(measured, *undecided(program))
            return _with_other_plan(finding, program, allocated_bytes, is_within)
        return self.finding(
            measured,
            Violation(
                f"a total within {self.relative:.2%} of {self.total_bytes:,} B",
                f"{allocated_bytes:,} B, {deviation:+.3%}",
                advice=_largest(program, program.plan.device_allocations),
            ),
        )


@dataclass(frozen=True)
class BeyondAtMost(Expectation):
    """Allocations other than those of parameters and named outputs total at most `limit_bytes`."""

    limit_bytes: int
    names: tuple[str, ...] = ()

    def _check(self, program: Program) -> Finding:
        named = _indices_named(program, self.names)
        others = [
            allocation
            for allocation in program.plan.allocations
            if allocation.index not in named and not allocation.is_a(AllocationKind.PARAMETER)
        ]
        expected = f"at most {self.limit_bytes:,} B beyond parameters{_except(self.names, ' and ')}"
        size_bytes = sum(allocation.size_bytes for allocation in others)
        return _at_most(self, program, size_bytes, self.limit_bytes, expected, others)


def _at_most(
    expectation: Expectation,
    program: Program,
    size_bytes: int,
    limit_bytes: int,
    expected: str,
    allocations: Sequence[BufferAllocation],
) -> Finding:
    """The finding for a sum over some allocations, which has a limit."""
    if size_bytes <= limit_bytes:
        finding = expectation.finding(f"{size_bytes:,} B", *undecided(program))
        return _with_other_plan(finding, program, size_bytes, limit_bytes.__ge__)
    largest = max(allocations, key=lambda allocation: allocation.size_bytes, default=None)
    return expectation.finding(
        f"{size_bytes:,} B",
        Violation(
            expected,
            f"{size_bytes:,} B, {size_bytes - limit_bytes:,} B too many",
            describe(largest) if largest is not None else "",
            program.plan.source_in(largest) if largest is not None else None,
            _largest(program, allocations),
        ),
    )


def _largest(program: Program, allocations: Iterable[BufferAllocation]) -> str:
    """Advice that names the largest values of some allocations, with their lines."""
    values = (value for allocation in allocations for value in allocation.values)
    arrays = sorted(values, key=lambda value: -value.size_bytes)[:_MAX_VALUES]
    texts = (
        f"{value.shape.without_layout} ({value.size_bytes:,} B) at {source or 'no line'}"
        for value in arrays
        for source in [program.plan.nearest_source(value.name)]
    )
    return f"make the largest values smaller, or free them earlier: {'; '.join(texts)}"


def undecided(program: Program) -> tuple[Violation, ...]:
    """A violation if the plan lacks memory that the step needs on the device: no bound is shown."""
    missing = program.plan.missing_memory
    if not missing:
        return ()
    missing_text = "; ".join(line for line in missing_lines(missing) if not line.startswith(" "))
    return (
        Violation(
            "a plan with all memory that the step needs",
            f"{missing_text}. The bound is undecided",
            missing[0].instruction,
            missing[0].source,
            "compile on the GPU with --target attached",
        ),
    )


def _with_other_plan(
    finding: Finding, program: Program, size_bytes: int, holds: Callable[[int], bool]
) -> Finding:
    """A warning in place of a finding that holds, if the tuner's other choice fails it."""
    other = other_plan(program.plan, program.facts.other_choice)
    if finding.violations or other is None or holds(size_bytes + other.more_bytes):
        return finding
    violation = Violation(
        f"{finding.expectation} with either backend that the tuner may choose",
        f"{size_bytes:,} B, or {other.text(size_bytes)}: a product's choice between a workspace of "
        "cuBLASLt and none is a near tie",
        advice="a lock of the device decides: `xlapipe dump … --target attached --tuning tune`",
    )
    return replace(finding, violations=(violation,), is_warning=True)


def describe(allocation: BufferAllocation) -> str:
    """`allocation 3 (maybe-live-out), value fusion.2 bf16[…]`, with the largest value."""
    kinds = " and ".join(allocation.kinds)
    text = f"allocation {allocation.index}" + (f" ({kinds})" if kinds else "")
    value = max(allocation.values, key=lambda value: value.size_bytes, default=None)
    return text if value is None else f"{text}, value {value.name} {value.shape}"


def allocations_named(program: Program, name: str) -> list[tuple[str, BufferAllocation | None]]:
    """(path, allocation) of every argument and output leaf that `name` matches."""
    return [(leaf.path, program.allocation_of(leaf)) for leaf in program.leaves_named(name)]


def _indices_named(program: Program, names: tuple[str, ...]) -> set[int]:
    """Indices of the allocations of the leaves that `names` match."""
    return {
        allocation.index
        for name in names
        for _, allocation in allocations_named(program, name)
        if allocation is not None
    }


def no_leaf_named(program: Program, name: str) -> Violation:
    """The violation for a name that matches no argument or output."""
    paths = [leaf.path for leaf in program.leaves]
    names = list(dict.fromkeys(map(argument_name, paths))) if len(paths) > _MAX_LISTED else paths
    more = f", … {len(names)} in total" if len(names) > _MAX_LISTED else ""
    listed = ", ".join(names[:_MAX_LISTED]) + more
    near = get_close_matches(name, dict.fromkeys([*names, *paths]), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return Violation(
        f"an argument or output named {name!r}",
        f"the program has {listed or 'no recorded leaf names'}",
        advice=f"{hint}name a leaf by the function's parameter and its path, e.g. cache[0]['k'], "
        "out[1]",
    )


def _except(names: tuple[str, ...], conjunction: str = " except ") -> str:
    return f"{conjunction}{', '.join(names)}" if names else ""
