"""What XLA decided for one module, as frozen data and pure functions: no parsing and no jax.

`plan` has the `Plan`: `buffers` (allocations), `live_ranges`, `hlo` and `thunks`. `program` adds
names of arguments and outputs. The other modules derive facts from a plan, e.g. `peak`, `copies`,
`donation`, `gemms`, `collectives` and `loops`; `verify` checks a plan after every read.
"""

from xlapipe.plans.buffers import (
    AllocationKind,
    BufferAllocation,
    InputOutputAlias,
    LogicalBuffer,
    Totals,
)
from xlapipe.plans.collectives import Collective
from xlapipe.plans.gemms import Gemm, GemmBackend
from xlapipe.plans.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plans.live_ranges import LiveRange, LiveRanges
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program
from xlapipe.plans.shapes import Shape
from xlapipe.plans.thunks import Thunk

__all__ = [
    "AllocationKind",
    "ArgumentLeaf",
    "BufferAllocation",
    "Collective",
    "Computation",
    "Gemm",
    "GemmBackend",
    "HloModule",
    "InputOutputAlias",
    "Instruction",
    "LiveRange",
    "LiveRanges",
    "LogicalBuffer",
    "MemorySpace",
    "OutputLeaf",
    "Plan",
    "Program",
    "Shape",
    "SourceLine",
    "Thunk",
    "Totals",
]
