"""The expectations: what a plan must satisfy, as frozen dataclasses whose fields are plain data.

`expectation` has the base class, `Finding` and `Violation`; `expectation_json` stores expectations
in a manifest. Most other modules have the expectations of one subject, e.g. `memory`,
`donation`, `collectives` or `gemms`. Programs import all of them from here.
"""

from xlapipe.expect.collectives import (
    CollectiveBytes,
    CollectiveCount,
    CollectiveEach,
    CollectivesAskedFor,
    CollectivesOverlap,
    DeadCollective,
)
from xlapipe.expect.copies import NoCopyAbove, NoUndefinedCopy
from xlapipe.expect.donation import Aliased, Donated, GivenUp, NotAliased
from xlapipe.expect.expectation import Expectation, Finding, Violation, check_all
from xlapipe.expect.expectation_json import expectation_from_json, expectation_to_json
from xlapipe.expect.gathered import GatheredEndAtUse, GatheredLiveAtMost
from xlapipe.expect.gemms import (
    FastAccumulation,
    GemmCount,
    Matmul,
    MatmulsAccounted,
    backend_counts,
)
from xlapipe.expect.kept import NotSaved, Offloaded, Saved
from xlapipe.expect.kernels import ConvolutionCount, FusionCount, KernelCount
from xlapipe.expect.loops import LoopOfTrips, NoCopyInLoopAbove
from xlapipe.expect.memory import (
    AllocationOf,
    AllocationsAre,
    BeyondAtMost,
    LeavesTotal,
    NoAllocationAbove,
    ParameterBytes,
    TempAtMost,
    TotalWithin,
)
from xlapipe.expect.second_call import CompiledOnce
from xlapipe.expect.traffic import (
    LaunchesAtMost,
    StepTimeAtMost,
    TrafficAtMost,
)
from xlapipe.expect.values import NoValueAbove, NoValueOfShape, ReadAtMost, ValuesOfShapeAtMost

__all__ = [
    "Aliased",
    "AllocationOf",
    "AllocationsAre",
    "BeyondAtMost",
    "CollectiveBytes",
    "CollectiveCount",
    "CollectiveEach",
    "CollectivesAskedFor",
    "CollectivesOverlap",
    "CompiledOnce",
    "ConvolutionCount",
    "DeadCollective",
    "Donated",
    "Expectation",
    "FastAccumulation",
    "Finding",
    "FusionCount",
    "GatheredEndAtUse",
    "GatheredLiveAtMost",
    "GemmCount",
    "GivenUp",
    "KernelCount",
    "LaunchesAtMost",
    "LeavesTotal",
    "LoopOfTrips",
    "Matmul",
    "MatmulsAccounted",
    "NoAllocationAbove",
    "NoCopyAbove",
    "NoCopyInLoopAbove",
    "NoUndefinedCopy",
    "NoValueAbove",
    "NoValueOfShape",
    "NotAliased",
    "NotSaved",
    "Offloaded",
    "ParameterBytes",
    "ReadAtMost",
    "Saved",
    "StepTimeAtMost",
    "TempAtMost",
    "TotalWithin",
    "TrafficAtMost",
    "ValuesOfShapeAtMost",
    "Violation",
    "backend_counts",
    "check_all",
    "expectation_from_json",
    "expectation_to_json",
]
