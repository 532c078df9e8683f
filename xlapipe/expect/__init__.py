"""The vocabulary of expectations. All are frozen dataclasses; every field is plain data."""

from xlapipe.expect.base import Expectation, Finding, Violation, check_all
from xlapipe.expect.donation import Aliased, Donated, GivenUp, NotAliased
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
from xlapipe.expect.traffic import ReadAtMost, ValuesOfShapeAtMost

__all__ = [
    "Aliased",
    "AllocationOf",
    "AllocationsAre",
    "BeyondAtMost",
    "Donated",
    "Expectation",
    "FastAccumulation",
    "Finding",
    "FusionCount",
    "GemmCount",
    "GivenUp",
    "KernelCount",
    "LoopOfTrips",
    "Matmul",
    "MatmulsAccounted",
    "NoAllocationAbove",
    "NoCopyAbove",
    "NoCopyInLoopAbove",
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
