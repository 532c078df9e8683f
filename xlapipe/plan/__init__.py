"""What XLA decided for one module, as frozen data: no parsing and no jax."""

from xlapipe.plan.buffers import (
    AllocationKind,
    BufferAllocation,
    InputOutputAlias,
    LogicalBuffer,
    Totals,
)
from xlapipe.plan.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plan.live_ranges import LiveRange, LiveRanges
from xlapipe.plan.plan import Plan
from xlapipe.plan.thunks import Thunk

__all__ = [
    "AllocationKind",
    "BufferAllocation",
    "Computation",
    "HloModule",
    "InputOutputAlias",
    "Instruction",
    "LiveRange",
    "LiveRanges",
    "LogicalBuffer",
    "Plan",
    "SourceLine",
    "Thunk",
    "Totals",
]
