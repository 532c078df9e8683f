"""The vocabulary of expectations. All are frozen dataclasses; every field is plain data."""

from xlapipe.expect.base import Expectation, Finding, Violation, check_all
from xlapipe.expect.collectives import (
    CollectiveBytes,
    CollectiveCount,
    CollectiveEach,
    CollectivesOverlap,
)
from xlapipe.expect.donation import Aliased, Donated, GivenUp, NotAliased
from xlapipe.expect.gathered import GatheredEndAtUse, GatheredLiveAtMost, NoUndefinedCopy
from xlapipe.expect.kernels import (
    FastAccumulation,
    FusionCount,
    GemmCount,
    KernelCount,
    Matmul,
    MatmulsAccounted,
    backend_counts,
)
from xlapipe.expect.loops import LoopOfTrips, NoCopyInLoopAbove
from xlapipe.expect.memory import (
    AllocationOf,
    AllocationsAre,
    BeyondAtMost,
    NoAllocationAbove,
    NoCopyAbove,
    NoValueOfShape,
    ParameterBytes,
    TempAtMost,
    TotalWithin,
)
from xlapipe.expect.record import expectation_from_json, expectation_to_json
from xlapipe.expect.requested import CollectivesAskedFor, DeadCollective
from xlapipe.expect.traffic import ReadAtMost, ValuesOfShapeAtMost

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
    "LoopOfTrips",
    "Matmul",
    "MatmulsAccounted",
    "NoAllocationAbove",
    "NoCopyAbove",
    "NoCopyInLoopAbove",
    "NoUndefinedCopy",
    "NoValueOfShape",
    "NotAliased",
    "ParameterBytes",
    "ReadAtMost",
    "TempAtMost",
    "TotalWithin",
    "ValuesOfShapeAtMost",
    "Violation",
    "backend_counts",
    "check_all",
    "expectation_from_json",
    "expectation_to_json",
]
