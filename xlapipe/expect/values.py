"""Expectations of values: which shapes there may be."""

import re
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import describe
from xlapipe.plan.program import Program

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")


@dataclass(frozen=True)
class NoValueOfShape(Expectation):
    """No value whose dimensions, ones left out, are `dims`, in whatever dtype or layout."""

    dims: tuple[int, ...]

    def check(self, program: Program) -> Finding:
        wanted = tuple(sorted(dim for dim in self.dims if dim != 1))
        violations = [
            Violation(
                f"no value of shape {list(self.dims)}",
                f"{value.shape}, {value.size_bytes:,} B",
                f"{describe(allocation)}, value {value.name}",
                program.plan.nearest_source(value.instruction),
                "select what is needed before computing the rest",
            )
            for allocation in program.plan.allocations
            for value in allocation.values
            if wanted in dims_of(value.shape)
        ]
        return self.finding("no such value" if not violations else "found", *violations)


@dataclass(frozen=True)
class ValuesOfShapeAtMost(Expectation):
    """At most `count` values with dimensions `dims`, ones left out, in whatever layout.

    `dtype` is XLA's name of an element type, e.g. `f32`; None for any.
    """

    dims: tuple[int, ...]
    count: int
    dtype: str | None = None

    def check(self, program: Program) -> Finding:
        wanted = tuple(sorted(dim for dim in self.dims if dim != 1))
        found = [
            (allocation, value)
            for allocation in program.plan.allocations
            for value in allocation.values
            if wanted in dims_of(value.shape, self.dtype)
            # A tuple's table of pointers prints the shapes of all its leaves.
            and not value.shape.startswith("(")
        ]
        measured = f"{len(found)}: {', '.join(value.name for _, value in found) or 'none'}"
        if len(found) <= self.count:
            return self.finding(measured)
        allocation, value = found[-1]
        return self.finding(
            measured,
            Violation(
                f"at most {self.count} values of {self.dtype or 'any type'} {list(self.dims)}",
                measured,
                f"{describe(allocation)}, value {value.name} {value.shape}",
                program.plan.nearest_source(value.instruction),
                "let the computation be fused into the one that uses its result",
            ),
        )


def dims_of(shape: str, dtype: str | None = None) -> list[tuple[int, ...]]:
    """Sorted dimensions, ones left out, of every array in a shape, or of those of one dtype.

    >>> dims_of("(f32[1,128,4]{2,1,0}, s8[16]{0})"), dims_of("(f32[2], s8[16])", "s8")
    ([(4, 128), (16,)], [(16,)])
    """
    found = []
    for element, numbers in _ARRAY.findall(shape):
        dims = [int(dim.lstrip("<=")) for dim in numbers.split(",") if dim]
        if dtype in (None, element):
            found.append(tuple(sorted(dim for dim in dims if dim != 1)))
    return found
