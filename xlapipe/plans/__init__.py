"""What XLA decided for one module, as frozen data: no parsing and no jax."""

from xlapipe.plans.buffers import (
    AllocationKind,
    BufferAllocation,
    InputOutputAlias,
    LogicalBuffer,
    Totals,
)
from xlapipe.plans.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plans.live_ranges import LiveRange, LiveRanges
from xlapipe.plans.plan import Plan
from xlapipe.plans.thunks import Thunk

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
