"""Buffer assignment: regions of device memory and the values that they contain."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.plans.shapes import Shape
from xlapipe.plans.short_repr import short_repr


class AllocationKind(StrEnum):
    """XLA's flags of an allocation, with XLA's names; an allocation may have several."""

    PARAMETER = "parameter"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread-local"
    MAYBE_LIVE_OUT = "maybe-live-out"
    PREALLOCATED_TEMP = "preallocated-temp"


def value_name(instruction: str, index: tuple[int, ...]) -> str:
    """XLA's name of a value: the instruction that defines it, and the index in its result.

    A pointer table is named with `{}` in addition.

    >>> value_name("fusion.1", (1, 0)), value_name("fusion.1", ())
    ('fusion.1{1,0}', 'fusion.1')
    """
    return f"{instruction}{{{','.join(map(str, index))}}}" if index else instruction


def split_value_name(name: str) -> tuple[str, tuple[int, ...]]:
    """The instruction and the index of which `value_name` made a name.

    >>> split_value_name("fusion.1{1,0}"), split_value_name("fusion.1")
    (('fusion.1', (1, 0)), ('fusion.1', ()))
    """
    instruction, _, index = name.partition("{")
    return instruction, tuple(int(part) for part in index[:-1].split(",") if part.isdecimal())


@dataclass(frozen=True, slots=True)
class LogicalBuffer:
    """A value (HloValue in dataflow analysis) at an offset inside an allocation.

    Attributes:
      name: defining instruction and shape index, as XLA prints them, e.g. `custom-call.5.0{0}`.
      offset_bytes: from the start of the allocation.
      shape: with layout, e.g. `s8[4194304]{0}`.
    """

    name: str
    offset_bytes: int
    size_bytes: int
    shape: Shape

    @property
    def instruction(self) -> str:
        """Name of the instruction that defines the value."""
        return split_value_name(self.name)[0]

    @property
    def index(self) -> tuple[int, ...]:
        """Index of the value in the instruction's result; empty if it is the whole result."""
        return split_value_name(self.name)[1]

    @property
    def end_bytes(self) -> int:
        """Offset of the first byte after it."""
        return self.offset_bytes + self.size_bytes

    def overlaps(self, other: "LogicalBuffer") -> bool:
        """Whether both share bytes of the allocation that they are in."""
        return self.offset_bytes < other.end_bytes and other.offset_bytes < self.end_bytes


@dataclass(frozen=True, slots=True)
class BufferAllocation:
    """A contiguous region of device memory.

    Attributes:
      kinds: in the order of `AllocationKind`; empty only if XLA printed no flags.
      parameter_number, parameter_shape_index: the entry parameter in this allocation; None if it
        contains none.
      color: XLA's memory space number; 0 is the default.
      values: ordered by offset, then size, then name.
    """

    __repr__ = short_repr

    index: int
    size_bytes: int
    kinds: tuple[AllocationKind, ...]
    parameter_number: int | None = None
    parameter_shape_index: tuple[int, ...] = ()
    color: int = 0
    values: tuple[LogicalBuffer, ...] = ()

    def is_a(self, kind: AllocationKind) -> bool:
        return kind in self.kinds


@dataclass(frozen=True, slots=True)
class InputOutputAlias:
    """The module's answer to a donation: an output that is written over a parameter.

    `output_index` is None if the alias is known only from the allocation (no module header).
    """

    parameter_number: int
    output_index: tuple[int, ...] | None
    parameter_index: tuple[int, ...] = ()
    must_alias: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes of a plan by kind of allocation.

    `live_out_bytes` includes aliased parameters, so
    total = parameter + live_out - aliased + constant + temp + thread_local.
    """

    total_allocation_bytes: int
    parameter_bytes: int
    live_out_bytes: int
    temp_bytes: int
    constant_bytes: int
    thread_local_bytes: int
    aliased_bytes: int

    @classmethod
    def of(cls, allocations: Iterable[BufferAllocation]) -> "Totals":
        """Sum `allocations`; an allocation of no other kind counts as temp."""
        total = parameter = live_out = temp = constant = thread_local = aliased = 0
        for allocation in allocations:
            size, kinds = allocation.size_bytes, allocation.kinds
            total += size
            if AllocationKind.THREAD_LOCAL in kinds:
                thread_local += size
            elif AllocationKind.PARAMETER in kinds:
                parameter += size
                if AllocationKind.MAYBE_LIVE_OUT in kinds:
                    live_out += size
                    aliased += size
            elif AllocationKind.CONSTANT in kinds:
                constant += size
            elif AllocationKind.MAYBE_LIVE_OUT in kinds:
                live_out += size
            else:
                temp += size
        return cls(total, parameter, live_out, temp, constant, thread_local, aliased)
