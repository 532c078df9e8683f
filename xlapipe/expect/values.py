"""Expectations of the shapes of values, and of how often arguments are read."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import describe, no_leaf_named
from xlapipe.plans import Instruction, Program
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.opcodes import RESHAPES
from xlapipe.plans.plan import Placed, Plan
from xlapipe.plans.readers import makers, readers_of
from xlapipe.plans.shapes import Shape, shape_of
from xlapipe.plans.wording import counted, listed


@dataclass(frozen=True)
class NoValueOfShape(Expectation):
    """No value has the dimensions `dims`, in any dtype or layout.

    Dimensions of size 1 and the order of dimensions are ignored. A value that XLA stores in other
    dimensions counts if it is written or read through a bitcast in these, or if it is the result of
    a product that has these in the traced program.
    """

    dims: tuple[int, ...]

    def _check(self, program: Program) -> Finding:
        violations = [
            Violation(
                f"no value of shape {list(self.dims)}",
                f"{value.shape}, {value.size_bytes:,} B",
                f"{describe(allocation)}, value {value.name}",
                program.plan.nearest_source(value.name),
                "select the needed elements before the computation",
            )
            for allocation, value in _values_of(program, self.dims)
        ]
        return self.finding(
            counted(len(violations), "such value") if violations else "no such value", *violations
        )


@dataclass(frozen=True)
class ValuesOfShapeAtMost(Expectation):
    """At most `count` values have the dimensions `dims`, as for `NoValueOfShape`.

    `dtype` is XLA's name of an element type, e.g. `f32`; None for any.
    """

    dims: tuple[int, ...]
    count: int
    dtype: str | None = None

    def _check(self, program: Program) -> Finding:
        matching = [
            placed
            for placed in _values_of(program, self.dims)
            if self.dtype in (None, placed[1].shape.element)
        ]
        measured = f"{len(matching)}: {listed([value.name for _, value in matching]) or 'none'}"
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
                program.plan.nearest_source(value.name),
                "rewrite the computation so that XLA fuses it into the one that uses its result",
            ),
        )


@dataclass(frozen=True)
class ReadAtMost(Expectation):
    """At most `count` instructions read each argument leaf named `name`."""

    name: str
    count: int

    def _check(self, program: Program) -> Finding:
        leaves = program.arguments_named(self.name)
        violations = [] if leaves else [no_leaf_named(program, self.name)]
        most_reads = 0
        for leaf in leaves:
            readers = _readers(program, leaf.parameter_number)
            most_reads = max(most_reads, len(readers))
            if len(readers) > self.count:
                names = listed([f"{reader.name} ({reader.opcode})" for reader in readers])
                violations.append(
                    Violation(
                        f"{leaf.path}: read by at most {counted(self.count, 'instruction')}",
                        f"read by {len(readers)}: {names}",
                        source=program.plan.nearest_source(readers[-1].name),
                        advice="compute everything that needs it in one place, or keep the smaller "
                        "result of the first read",
                    )
                )
        return self.finding(f"read by {counted(most_reads, 'instruction')}", *violations)


def _readers(program: Program, number: int | None) -> list[Instruction]:
    """Instructions that read entry parameter `number`, also under other names, in XLA's order."""
    parameter = program.plan.parameter(number)
    if parameter is None:
        return []
    names = readers_of(program.plan, parameter.name, also=RESHAPES)
    return [program.plan.instructions[name] for name in names]


@dataclass(frozen=True)
class NoValueAbove(Expectation):
    """No value of the step is larger than `limit_bytes`: none in a temporary allocation either.

    `dtype` is XLA's name of an element type, e.g. `f32`; None for any.
    """

    limit_bytes: int
    dtype: str | None = None

    def _check(self, program: Program) -> Finding:
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
                program.plan.nearest_source(value.name),
                "look for a value that is kept in a wider type, or that XLA did not fuse into "
                "what reads it",
            )
            for allocation, value in values
            if value.size_bytes > self.limit_bytes
        ]
        return self.finding(f"largest {largest_bytes:,} B", *violations)


def _values_of(program: Program, dims: tuple[int, ...]) -> Iterator[Placed]:
    """The values with the dimensions `dims`; a tuple's table of pointers is not a value."""
    wanted, elements = _comparable(dims), prod(dims)
    products = {
        dot.op_name
        for dot in program.facts.requested_dots or ()
        if _comparable(shape_of(dot.shape).dims) == wanted
    }
    maker_of = makers(program.plan)
    for allocation in program.plan.allocations:
        for value in allocation.values:
            # The number of elements of a dynamic shape is 0.
            if value.shape.is_tuple or value.shape.elements not in (0, elements):
                continue
            maker = maker_of.get(value.instruction)
            shapes = [value.shape]
            if maker is not None and allocation.parameter_number is None:
                shapes += _shapes(program.plan, Value(*maker, value.index))
            # A library's call returns the product and a workspace.
            is_first = value.index in ((), (0,))
            traced = is_first and maker is not None and maker[1].op_name in products
            if traced or any(_comparable(shape.dims) == wanted for shape in shapes):
                yield allocation, value


def _shapes(plan: Plan, value: Value) -> Iterator[Shape]:
    """The other shapes of a value, with the same number of elements."""
    assert plan.module is not None
    shapes = dataflow_of(plan.module).shapes(value)
    return (shape for shape in shapes if shape.elements == value.shape.elements)


def _comparable(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Sorted dimensions without ones, which XLA adds, drops and reorders."""
    return tuple(sorted(dim for dim in dims if dim != 1))
