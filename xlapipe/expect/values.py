"""Expectations of the shapes of values."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import describe
from xlapipe.plans.program import Program
from xlapipe.plans.shapes import Shape
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class NoValueOfShape(Expectation):
    """No value has the dimensions `dims`, in any dtype or layout.

    Dimensions of size 1 and the order of dimensions are ignored.
    """

    dims: tuple[int, ...]

    def check(self, program: Program) -> Finding:
        dims = tuple(sorted(dim for dim in self.dims if dim != 1))
        violations = [
            Violation(
                f"no value of shape {list(self.dims)}",
                f"{value.shape}, {value.size_bytes:,} B",
                f"{describe(allocation)}, value {value.name}",
                program.plan.nearest_source(value.instruction),
                "select the needed elements before the computation",
            )
            for allocation in program.plan.allocations
            for value in allocation.values
            if dims in dims_of(value.shape)
        ]
        return self.finding(
            counted(len(violations), "such value") if violations else "no such value", *violations
        )


@dataclass(frozen=True)
class ValuesOfShapeAtMost(Expectation):
    """At most `count` values have the dimensions `dims`, in any layout.

    Dimensions of size 1 and the order of dimensions are ignored. `dtype` is XLA's name of an
    element type, e.g. `f32`; None for any.
    """

    dims: tuple[int, ...]
    count: int
    dtype: str | None = None

    def check(self, program: Program) -> Finding:
        dims = tuple(sorted(dim for dim in self.dims if dim != 1))
        matching = [
            (allocation, value)
            for allocation in program.plan.allocations
            for value in allocation.values
            if dims in dims_of(value.shape, self.dtype)
            # The shape of a tuple's table of pointers lists the shapes of all its elements.
            and not value.shape.is_tuple
        ]
        measured = f"{len(matching)}: {', '.join(value.name for _, value in matching) or 'none'}"
        if len(matching) <= self.count:
            return self.finding(measured)
        allocation, value = matching[-1]
        return self.finding(
            measured,
            Violation(
                f"at most {counted(self.count, 'value')} of {self.dtype or 'any type'} "
                f"{list(self.dims)}",
                measured,
                f"{describe(allocation)}, value {value.name} {value.shape}",
                program.plan.nearest_source(value.instruction),
                "rewrite the computation so that XLA fuses it into the one that uses its result",
            ),
        )


@dataclass(frozen=True)
class NoValueAbove(Expectation):
    """No value of the step is larger than `limit_bytes`: none in a temporary allocation either.

    `dtype` is XLA's name of an element type, e.g. `f32`; None for any.
    """

    limit_bytes: int
    dtype: str | None = None

    def check(self, program: Program) -> Finding:
        values = [
            (allocation, value)
            for allocation in program.plan.allocations
            for value in allocation.values
            if self.dtype is None or value.shape.element == self.dtype
        ]
        largest_bytes = max((value.size_bytes for _, value in values), default=0)
        violations = [
            Violation(
                f"no {self.dtype or 'value'} above {self.limit_bytes:,} B",
                f"{value.shape}, {value.size_bytes:,} B",
                f"allocation {allocation.index}, value {value.name}",
                program.plan.nearest_source(value.instruction),
                "look for a value that is kept in a wider type, or that XLA did not fuse into "
                "what reads it",
            )
            for allocation, value in values
            if value.size_bytes > self.limit_bytes
        ]
        return self.finding(f"largest {largest_bytes:,} B", *violations)


def dims_of(shape: Shape, dtype: str | None = None) -> list[tuple[int, ...]]:
    """Sorted dimensions, without ones, of every array in a shape, or of those of one dtype."""
    return [
        tuple(sorted(array.dims_without_ones))
        for array in shape.arrays
        if dtype in (None, array.element)
    ]
