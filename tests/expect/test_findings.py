"""What findings measure and what their violations state, on one small program."""

import pytest

from tests.expect.findings_program import PROGRAM
from xlapipe.expect import (
    Aliased,
    AllocationOf,
    AllocationsAre,
    BeyondAtMost,
    BoundBy,
    CollectiveBytes,
    CollectiveCount,
    CollectiveEach,
    CollectivesAskedFor,
    CollectivesOverlap,
    ConvolutionCount,
    DeadCollective,
    Donated,
    Expectation,
    FastAccumulation,
    FloorAtMost,
    FusionCount,
    GatheredEndAtUse,
    GatheredLiveAtMost,
    GemmCount,
    GivenUp,
    HostAtMost,
    KernelCount,
    LaunchesAtMost,
    LeavesTotal,
    LoopOfTrips,
    Matmul,
    MatmulsAccounted,
    NoAllocationAbove,
    NoCopyAbove,
    NoCopyInLoopAbove,
    NotAliased,
    NoUndefinedCopy,
    NoValueAbove,
    NoValueOfShape,
    Offloaded,
    ParameterBytes,
    ReadAtMost,
    ReadsAtMost,
    TempAtMost,
    TotalWithin,
    TrafficAtMost,
    ValuesOfShapeAtMost,
)


@pytest.mark.parametrize(
    ("expectation", "measured", "violations"),
    [
        (
            CollectiveCount(3),
            "1 all-gather, 1 all-reduce",
            [("3 × a collective", "2 (1 all-gather, 1 all-reduce)", "gather, sum")],
        ),
        (
            CollectiveCount(2, "all-gather"),
            "1 all-gather, 1 all-reduce",
            [("2 × all-gather", "1 (1 all-gather, 1 all-reduce)", "gather")],
        ),
        (
            CollectiveCount(0, ("all-gather", "all-reduce")),
            "1 all-gather, 1 all-reduce",
            [("0 × all-gather or all-reduce", "2 (1 all-gather, 1 all-reduce)", "gather, sum")],
        ),
        (
            CollectiveBytes(1),
            "96 B of results in 2 collectives",
            [
                (
                    "1 B of results of all collectives",
                    "96 B, +95 B",
                    "gather of f32[16]{0} over 2 devices",
                )
            ],
        ),
        (
            CollectiveBytes(1, "all-gather", operands=True),
            "32 B of operands in 1 collective",
            [
                (
                    "1 B of operands of all-gather",
                    "32 B, +31 B",
                    "gather of f32[16]{0} over 2 devices",
                )
            ],
        ),
        (
            CollectiveBytes(1, "all-to-all"),
            "0 B of results in 0 collectives",
            [("1 B of results of all-to-all", "0 B, -1 B", "")],
        ),
        (
            CollectiveEach("all-gather", 32),
            "1 array in 1 collective",
            [
                (
                    "32 B from each all-gather",
                    "64 B (f32[16]{0})",
                    "gather of f32[16]{0} over 2 devices",
                )
            ],
        ),
        (CollectiveEach("all-gather", 64), "1 array in 1 collective", []),
        (
            CollectiveEach("all-to-all", 1),
            "0 arrays in 0 collectives",
            [
                (
                    "a collective of kind all-to-all",
                    "none (the program has: 1 all-gather, 1 all-reduce)",
                    "",
                )
            ],
        ),
        (
            CollectivesOverlap("all-gather"),
            "0 of 1 overlapped",
            [
                (
                    "work between start and end of every all-gather",
                    "gather is synchronous",
                    "gather of f32[16]{0} over 2 devices",
                )
            ],
        ),
        (
            CollectivesOverlap("all-gather", gemms=True),
            "0 of 1 overlapped",
            [
                (
                    "a gemm between start and end of every all-gather",
                    "gather is synchronous",
                    "gather of f32[16]{0} over 2 devices",
                )
            ],
        ),
        (
            CollectivesOverlap("all-to-all"),
            "0 of 0 overlapped",
            [
                (
                    "a collective of kind all-to-all",
                    "none (the program has: 1 all-gather, 1 all-reduce)",
                    "",
                )
            ],
        ),
        (
            ConvolutionCount(2),
            "1 of 1 convolution",
            [("2 convolutions by cuDNN", "1 (all: 1 convForward)", "instruction conv")],
        ),
        (
            ConvolutionCount(0, "stem"),
            "1 of 1 convolution",
            [("0 convolutions by cuDNN in stem", "1 (all: 1 convForward)", "instruction conv")],
        ),
        (
            ConvolutionCount(1, "head"),
            "0 of 1 convolution",
            [("1 convolution by cuDNN in head", "0 (all: 1 convForward)", "")],
        ),
        (
            NoCopyAbove(31),
            "2 copies, largest 32 B",
            [
                (
                    "no copy above 31 B",
                    "32 B copied by kept",
                    "allocation 11, value kept (jit(step)/loop/copy)",
                ),
                (
                    "no copy above 31 B",
                    "32 B copied by undefined",
                    "allocation 10, value undefined (jit(step)/rev)",
                ),
            ],
        ),
        (NoCopyAbove(32), "2 copies, largest 32 B", []),
        (
            NoUndefinedCopy(),
            "1 copy of undefined data",
            [
                (
                    "no copy of undefined data",
                    "undefined copies 32 B of undefined data from empty",
                    "instruction undefined (jit(step)/rev)",
                )
            ],
        ),
        (Donated("x"), "1 leaf, 32 B aliased", []),
        (
            Donated("w"),
            "1 leaf, 0 B aliased",
            [
                (
                    "w (float32[8, 8], 256 B) is aliased",
                    "it is not donated",
                    "allocation 1 (parameter), value w f32[8,8]{1,0}",
                )
            ],
        ),
        (Aliased("x"), "1 leaf, 32 B aliased", []),
        (
            GivenUp("w"),
            "1 leaf, 0 B given up",
            [
                (
                    "w (float32[8, 8], 256 B) is aliased",
                    "it is not donated",
                    "allocation 1 (parameter), value w f32[8,8]{1,0}",
                )
            ],
        ),
        (
            NotAliased(),
            "1 alias in the module",
            [
                (
                    "x is not aliased",
                    "aliased to out[0]",
                    "allocation 0 (parameter and maybe-live-out), value x f32[8]{0}",
                )
            ],
        ),
        (NotAliased("w"), "1 alias in the module", []),
        (
            NotAliased("x"),
            "1 alias in the module",
            [
                (
                    "x is not aliased",
                    "aliased to out[0]",
                    "allocation 0 (parameter and maybe-live-out), value x f32[8]{0}",
                )
            ],
        ),
        (
            FusionCount(0),
            "1 __triton, 1 kLoop",
            [("0 fusions", "2 (1 __triton, 1 kLoop)", "instruction triton")],
        ),
        (
            FusionCount(2, "kLoop"),
            "1 __triton, 1 kLoop",
            [("2 fusions of kind kLoop", "1 (1 __triton, 1 kLoop)", "instruction loop")],
        ),
        (FusionCount(1, backend_kind="__triton"), "1 __triton, 1 kLoop", []),
        (
            FusionCount(1, "kInput"),
            "1 __triton, 1 kLoop",
            [("1 fusion of kind kInput", "0 (1 __triton, 1 kLoop)", "")],
        ),
        (
            GatheredLiveAtMost(63),
            "64 B of 1 gathered value",
            [
                (
                    "at most 63 B of gathered values alive at the same time",
                    "64 B: gather (64 B)",
                    "allocation 3, value gather, alive at positions 4 to 17",
                )
            ],
        ),
        (GatheredLiveAtMost(64), "64 B of 1 gathered value", []),
        (
            GatheredEndAtUse(),
            "1 gathered value",
            [
                (
                    "gather (64 B) ends at its last reader",
                    "it is an output, or alive to the end of the step",
                    "allocation 3, value gather, alive at positions 4 to 17",
                )
            ],
        ),
        (
            GemmCount(2),
            "1 cublas",
            [
                (
                    "2 gemms on any backend",
                    "1 (1 cublas)",
                    "gemm on cublas: f32[8,8]{1,0} × f32[8,8]{1,0} × (f32[8,8]{1,0}, s8[64]{0})",
                )
            ],
        ),
        (
            GemmCount(2, ("triton",)),
            "1 cublas",
            [
                (
                    "2 gemms on triton",
                    "0 (1 cublas)",
                    "gemm on cublas: f32[8,8]{1,0} × f32[8,8]{1,0} × (f32[8,8]{1,0}, s8[64]{0})",
                )
            ],
        ),
        (GemmCount(1, ("cublas",)), "1 cublas", []),
        (
            MatmulsAccounted((Matmul("up", 2),)),
            "1 cublas",
            [
                ("2 dots in up before optimisation", "1", ""),
                (
                    "2 gemms in up after optimisation",
                    "1: gemm on cublas: f32[8,8]{1,0} × f32[8,8]{1,0} × (f32[8,8]{1,0}, s8[64]{0})",
                    "",
                ),
            ],
        ),
        (
            MatmulsAccounted((Matmul("down"),)),
            "1 cublas",
            [
                ("1 dot in down before optimisation", "0", ""),
                ("1 gemm in down after optimisation", "0: none", ""),
                (
                    "every gemm in the scope of a listed matmul",
                    "cublas gemm outside all scopes (jit(step)/up/dot_general)",
                    "gemm on cublas: f32[8,8]{1,0} × f32[8,8]{1,0} × (f32[8,8]{1,0}, s8[64]{0})",
                ),
                (
                    "every dot of the program in the scope of a listed matmul",
                    "dot outside all scopes: jit(step)/up/dot_general f32[8,8]",
                    "",
                ),
            ],
        ),
        (
            MatmulsAccounted((Matmul("up", backends=("triton",)),)),
            "1 cublas",
            [
                (
                    "up on triton",
                    "cublas",
                    "gemm on cublas: f32[8,8]{1,0} × f32[8,8]{1,0} × (f32[8,8]{1,0}, s8[64]{0})",
                )
            ],
        ),
        (FastAccumulation(("up",)), "0 of 0 float8 gemms fast", []),
        (
            HostAtMost(31),
            "32 B",
            [
                (
                    "host memory of at most 31 B",
                    "32 B, 1 B too many",
                    "allocation 2 (parameter), value h f32[8]{0:S(5)}",
                )
            ],
        ),
        (HostAtMost(32), "32 B", []),
        (ReadsAtMost("h", 0), "read 0 times", []),
        (
            LaunchesAtMost(0),
            "11 launches",
            [("at most 0 launches", "11", "kept is launched 3 times")],
        ),
        (Offloaded("h"), "32 B in host memory", []),
        (
            Offloaded("x"),
            "0 B in host memory",
            [
                (
                    "x: an allocation in host memory",
                    "device memory",
                    "allocation 0 (parameter and maybe-live-out), value x f32[8]{0}",
                )
            ],
        ),
        (KernelCount("k", 1), "none", [("1 call of kernel k", "0 (kernels: none)", "")]),
        (LeavesTotal("x", 32), "1 leaf, 32 B", []),
        (
            LeavesTotal("out", 32),
            "2 leaves, 64 B",
            [("out: 32 B in total", "64 B, +32 B", "the largest is out[0], 32 B")],
        ),
        (
            LeavesTotal("y", 1),
            "0 leaves, 0 B",
            [("an argument or output named 'y'", "the program has x, w, h, out[0], out[1]", "")],
        ),
        (
            NoCopyInLoopAbove(31),
            "1 copy in 1 loop, largest 32 B",
            [
                (
                    "no copy above 31 B in a while loop",
                    "32 B copied by kept in each trip",
                    "allocation 11, value kept (jit(step)/loop/copy)",
                )
            ],
        ),
        (LoopOfTrips(3), "trips: 3", []),
        (LoopOfTrips(1), "trips: 3", [("one loop with 1 trip", "trips: 3", "while")]),
        (
            AllocationsAre(((32, ("parameter",)), (256, ("parameter",)))),
            "allocations 0 to 1 compared",
            [
                (
                    "allocation 0: 32 B, parameter",
                    "32 B, parameter and maybe-live-out",
                    "allocation 0 (parameter and maybe-live-out), value x f32[8]{0}",
                )
            ],
        ),
        (
            AllocationsAre(((1, ()),), 40),
            "allocations 40 to 40 compared",
            [("allocation 40: 1 B, no kind", "no such allocation", "")],
        ),
        (
            AllocationOf("w", 1),
            "1 × 1 B",
            [
                (
                    "w: an allocation of 1 B",
                    "256 B",
                    "allocation 1 (parameter), value w f32[8,8]{1,0}",
                )
            ],
        ),
        (
            AllocationOf("out", 1),
            "2 × 1 B",
            [
                (
                    "out[0]: an allocation of 1 B",
                    "32 B",
                    "allocation 0 (parameter and maybe-live-out), value x f32[8]{0}",
                ),
                (
                    "out[1]: an allocation of 1 B",
                    "32 B",
                    "allocation 8 (maybe-live-out), value triton f32[8]{0}",
                ),
            ],
        ),
        (
            NoAllocationAbove(255),
            "largest 256 B",
            [
                (
                    "no allocation above 255 B",
                    "256 B",
                    "allocation 1 (parameter), value w f32[8,8]{1,0}",
                ),
                (
                    "no allocation above 255 B",
                    "256 B",
                    "allocation 5 (preallocated-temp), value gemm{0} f32[8,8]{1,0}",
                ),
                (
                    "no allocation above 255 B",
                    "256 B",
                    "allocation 6 (preallocated-temp), value conv{0} f32[8,8]{1,0}",
                ),
            ],
        ),
        (ParameterBytes(1), "288 B", [("parameters of 1 B in total", "288 B, +287 B", "")]),
        (ParameterBytes(288), "288 B", []),
        (
            TempAtMost(1),
            "736 B",
            [
                (
                    "temp memory of at most 1 B",
                    "736 B, 735 B too many",
                    "allocation 5 (preallocated-temp), value gemm{0} f32[8,8]{1,0}",
                )
            ],
        ),
        (
            TotalWithin(1000, 0.001),
            "1,056 B, +5.6000%",
            [("a total within 0.10% of 1,000 B", "1,056 B, +5.600%", "")],
        ),
        (
            BeyondAtMost(1, ("out",)),
            "736 B",
            [
                (
                    "at most 1 B beyond parameters and out",
                    "736 B, 735 B too many",
                    "allocation 5 (preallocated-temp), value gemm{0} f32[8,8]{1,0}",
                )
            ],
        ),
        (
            ReadAtMost("x", 1),
            "read by 3 instructions",
            [
                (
                    "x: read by at most 1 instruction",
                    "read by 3: gather (all-gather), sum (all-reduce), out (add)",
                    "",
                )
            ],
        ),
        (ReadAtMost("w", 2), "read by 2 instructions", []),
        (
            CollectivesAskedFor(2, "all-gather"),
            "1",
            [
                (
                    "2 × all-gather in the traced program",
                    "1, the last is jit(step)/fetch/all_gather",
                    "",
                )
            ],
        ),
        (CollectivesAskedFor(1, "all-gather"), "1", []),
        (
            CollectivesAskedFor(1, "all-to-all"),
            "0",
            [("1 × all-to-all in the traced program", "0", "")],
        ),
        (
            DeadCollective("all-gather", "fetch"),
            "1 requested, 1 compiled",
            [
                (
                    "no all-gather in fetch after optimisation",
                    "all-gather gather",
                    "gather of f32[16]{0} over 2 devices",
                )
            ],
        ),
        (
            DeadCollective("all-gather", "other"),
            "0 requested, 0 compiled",
            [
                (
                    "all-gather in the scope other of the traced program",
                    "jit(step)/fetch/all_gather",
                    "",
                )
            ],
        ),
        (
            TrafficAtMost(1),
            "1,664 B",
            [
                (
                    "at most 1 B read and written",
                    "1,664 B, 1,663 B more",
                    "most of them in gemm (__cublas$gemm), 512 B",
                )
            ],
        ),
        (
            # A kernel, an all-gather and an all-reduce.
            ReadsAtMost("x", 1),
            "read 3 times",
            [("x: read at most 1 time", "read 3 times: 96 B of 32 B", "allocation 0")],
        ),
        (
            LaunchesAtMost(1),
            "11 launches",
            [("at most 1 launch", "11", "kept is launched 3 times")],
        ),
        (LaunchesAtMost(99), "11 launches", []),
        (
            FloorAtMost(0.0, "h200"),
            "0.00 µs on h200",
            [
                (
                    "a floor of at most 0.00 µs on h200",
                    "0.00 µs on h200",
                    "the longest is gemm (__cublas$gemm), 512 B, bound by memory",
                )
            ],
        ),
        (FloorAtMost(1.0, "h200"), "0.00 µs on h200", []),
        (
            FloorAtMost(1.0, "none"),
            "unknown",
            [
                (
                    "a target of the catalogue, whose bandwidth and peaks are known",
                    "target 'none'",
                    "",
                )
            ],
        ),
        (
            BoundBy("compute"),
            "memory 68%, link 32%",
            [("more than half of the floor is bound by compute", "memory 68%, link 32%", "")],
        ),
        (BoundBy("memory"), "memory 68%, link 32%", []),
        (
            NoValueOfShape((8, 8)),
            "3 such values",
            [
                (
                    "no value of shape [8, 8]",
                    "f32[8,8]{1,0}, 256 B",
                    "allocation 1 (parameter), value w f32[8,8]{1,0}, value w",
                ),
                (
                    "no value of shape [8, 8]",
                    "f32[8,8]{1,0}, 256 B",
                    "allocation 5 (preallocated-temp), value gemm{0} f32[8,8]{1,0}, value gemm{0}",
                ),
                (
                    "no value of shape [8, 8]",
                    "f32[8,8]{1,0}, 256 B",
                    "allocation 6 (preallocated-temp), value conv{0} f32[8,8]{1,0}, value conv{0}",
                ),
            ],
        ),
        (NoValueOfShape((3, 3)), "no such value", []),
        (
            ValuesOfShapeAtMost((8, 8), 1),
            "3: w, gemm{0}, conv{0}",
            [
                (
                    "at most 1 value of any type [8, 8]",
                    "3: w, gemm{0}, conv{0}",
                    "allocation 6 (preallocated-temp), value conv{0} f32[8,8]{1,0}, "
                    "value conv{0} f32[8,8]{1,0}",
                )
            ],
        ),
        (ValuesOfShapeAtMost((3,), 1), "0: none", []),
        (
            ValuesOfShapeAtMost((8,), 99),
            "10: x, out, h, sum, loop, triton, empty, undefined and 2 more",
            [],
        ),
        (
            NoValueAbove(255),
            "largest 256 B",
            [
                ("no value above 255 B", "f32[8,8]{1,0}, 256 B", "allocation 1, value w"),
                ("no value above 255 B", "f32[8,8]{1,0}, 256 B", "allocation 5, value gemm{0}"),
                ("no value above 255 B", "f32[8,8]{1,0}, 256 B", "allocation 6, value conv{0}"),
            ],
        ),
        (NoValueAbove(1000, "s8"), "largest 0 B", []),
        (
            NoAllocationAbove(255, ("w",)),
            "largest 256 B",
            [
                (
                    "no allocation above 255 B except w",
                    "256 B",
                    "allocation 5 (preallocated-temp), value gemm{0} f32[8,8]{1,0}",
                ),
                (
                    "no allocation above 255 B except w",
                    "256 B",
                    "allocation 6 (preallocated-temp), value conv{0} f32[8,8]{1,0}",
                ),
            ],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Expectation) else "",
)
def test_what_is_measured_and_what_is_wrong(
    expectation: Expectation, measured: str, violations: list[tuple[str, str, str]]
) -> None:
    finding = expectation.check(PROGRAM)
    stated = [(str(it.expected), str(it.found), it.where) for it in finding.violations]
    assert (finding.measured, stated) == (measured, violations)


@pytest.mark.parametrize(
    ("expectation", "line"),
    [
        (CollectiveCount(3), 12),
        (ConvolutionCount(2), 14),
        (FusionCount(0), 16),
        (GemmCount(2), 13),
        (LaunchesAtMost(1), 21),
        (LoopOfTrips(1), 20),
        (NoUndefinedCopy(), 17),
        (Offloaded("x"), 11),
        (ReadAtMost("x", 1), 22),
        (TempAtMost(1), 13),
        (TrafficAtMost(1), 13),
    ],
    ids=str,
)
def test_the_line_is_that_of_the_instruction(expectation: Expectation, line: int) -> None:
    (violation,) = expectation.check(PROGRAM).violations
    assert str(violation.source) == f"step.py:{line}"
