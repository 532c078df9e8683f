"""What findings measure and what their violations state, on one small program."""

import re
from dataclasses import replace

import pytest

from tests.reading.small_hlo import plan_of_text
from xlapipe.cost import step_cost
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
    SlowerThanRecord,
    StepTimeAtMost,
    TempAtMost,
    TotalWithin,
    TrafficAtMost,
    ValuesOfShapeAtMost,
)
from xlapipe.expect.expectation import check_all
from xlapipe.expect.gemms import within_differentiated
from xlapipe.expect.traffic import counted_times
from xlapipe.plans import AllocationKind, BufferAllocation, InputOutputAlias, Plan
from xlapipe.plans.program import (
    ArgumentLeaf,
    OutputLeaf,
    Program,
    RequestedCollective,
    RequestedDot,
)
from xlapipe.targets.device import device_of_target

ROW, WIDE, MATRIX = "f32[8]{0}", "f32[16]{0}", "f32[8,8]{1,0}"
TRIPS = 'backend_config={"known_trip_count":{"n":"3"}}'
TRITON = 'backend_config={"fusion_backend_config":{"kind":"__triton"}}'


def named(op_name: str, line: int) -> str:
    return f'metadata={{op_name="jit(step)/{op_name}" source_file="step.py" source_line={line}}}'


# Argument x is donated and updated in place; w is not; the loop copies its carry.
TEXT = f"""HloModule m, is_scheduled=true

%fused (y: f32[8]) -> f32[8] {{
  %y = {ROW} parameter(0)
  ROOT %n = {ROW} negate(%y)
}}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], {ROW}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %c = {ROW} get-tuple-element(%p), index=1
  %kept = {ROW} copy(%c), {named("loop/copy", 21)}
  ROOT %next = (s32[], {ROW}) tuple(%i, %kept)
}}

%condition (q: (s32[], f32[8])) -> pred[] {{
  %q = (s32[], {ROW}) parameter(0)
  ROOT %go = pred[] constant(true)
}}

ENTRY %main (x: f32[8], w: f32[8,8], h: f32[8]) -> (f32[8], f32[8]) {{
  %x = {ROW} parameter(0)
  %w = {MATRIX} parameter(1)
  %h = f32[8]{{0:S(5)}} parameter(2)
  %zero = s32[] constant(0)
  %gather = {WIDE} all-gather(%x), replica_groups={{{{0,1}}}}, dimensions={{0}}, \
{named("fetch/all_gather", 11)}
  %sum = {ROW} all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%add, \
{named("loss/psum", 12)}
  %gemm = ({MATRIX}, s8[64]{{0}}) custom-call(%w, %w), custom_call_target="__cublas$gemm", \
{named("up/dot_general", 13)}
  %conv = ({MATRIX}, u8[0]{{0}}) custom-call(%w, %w), custom_call_target="__cudnn$convForward", \
{named("stem/conv_general_dilated", 14)}
  %loop = {ROW} fusion(%sum), kind=kLoop, calls=%fused, {named("neg", 15)}
  %triton = {ROW} fusion(%sum), kind=kCustom, calls=%fused, {named("neg", 16)}, {TRITON}
  %empty = {ROW} custom-call(), custom_call_target="AllocateBuffer"
  %undefined = {ROW} reverse(%empty), dimensions={{0}}, {named("rev", 17)}
  %start = (s32[], {ROW}) tuple(%zero, %undefined)
  %while = (s32[], {ROW}) while(%start), condition=%condition, body=%body, {TRIPS}, \
{named("while", 20)}
  %last = {ROW} get-tuple-element(%while), index=1
  %out = {ROW} add(%last, %x), {named("add", 22)}
  ROOT %results = ({ROW}, {ROW}) tuple(%out, %triton)
}}
"""
MEMORY = {
    "x": 0, "out": 0, "w": 1, "h": 2, "gather": 3, "sum": 4, "gemm{0}": 5, "conv{0}": 6,
    "loop": 7, "triton": 8, "empty": 9, "undefined": 10, "while{1}": 10, "kept": 11,
}  # fmt: skip
ALIVE = {"gather": (4, 17)}
KINDS = {
    0: (AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT),
    1: (AllocationKind.PARAMETER,),
    2: (AllocationKind.PARAMETER,),
    8: (AllocationKind.MAYBE_LIVE_OUT,),
}


def placed(allocation: BufferAllocation) -> BufferAllocation:
    number = allocation.index if allocation.index < 3 else None
    return replace(
        allocation,
        kinds=KINDS.get(allocation.index, (AllocationKind.PREALLOCATED_TEMP,)),
        parameter_number=number,
        color=5 if number == 2 else 0,
    )


def program() -> Program:
    plan = plan_of_text(TEXT, MEMORY, ALIVE)
    plan = replace(
        plan,
        allocations=tuple(map(placed, plan.allocations)),
        header_aliases=(InputOutputAlias(0, (0,)),),
    )
    return Program(
        plan,
        "cublas",
        (
            ArgumentLeaf("x", (8,), "float32", 32, True, 0),
            ArgumentLeaf("w", (8, 8), "float32", 256, False, 1),
            ArgumentLeaf("h", (8,), "float32", 32, False, 2),
        ),
        (
            OutputLeaf("out[0]", (8,), "float32", 32, 0),
            OutputLeaf("out[1]", (8,), "float32", 32, 1),
        ),
        requested_dots=(RequestedDot("jit(step)/up/dot_general", "f32[8,8]", None),),
        requested_collectives=(
            RequestedCollective(
                "all-gather", "jit(step)/fetch/all_gather", ("float32[8]",), 1, None
            ),
            RequestedCollective("all-reduce", "jit(step)/loss/psum", ("float32[8]",), 1, None),
        ),
        target="h200",
    )


PROGRAM = program()


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


NO_MODULE = Program(Plan(()), target="h200")


@pytest.mark.parametrize(
    ("expectation", "part"),
    [
        (BoundBy("memory"), "kernels"),
        (CollectiveCount(1), "collectives"),
        (DeadCollective("all-gather", "fetch"), "collectives"),
        (FloorAtMost(1.0, "h200"), "kernels"),
        (GatheredEndAtUse(), "collectives"),
        (LaunchesAtMost(1), "kernels"),
        (NoUndefinedCopy(), "instructions"),
        (ReadsAtMost("x", 1), "kernels"),
        (StepTimeAtMost(1.0), "kernels"),
        (TrafficAtMost(1), "kernels"),
    ],
    ids=str,
)
def test_a_dump_without_a_module_decides_nothing(expectation: Expectation, part: str) -> None:
    finding = expectation.check(NO_MODULE)
    assert finding.measured == "unknown"
    (violation,) = finding.violations
    assert violation.expected == f"the {part} of the module"


def test_a_dump_without_a_record_of_the_traced_program_decides_nothing() -> None:
    untraced = replace(PROGRAM, requested_collectives=None)
    for expectation in (CollectivesAskedFor(1, "all-gather"), DeadCollective("all-gather", "a")):
        finding = expectation.check(untraced)
        assert finding.measured == "unknown"
        assert "traced program" in finding.violations[0].expected


def test_long_lists_are_cut() -> None:
    """At most eight collectives, gathered values and leaf names are listed."""

    def many(count: int) -> Program:
        gathers = "\n".join(
            f"  %g{n} = {WIDE} all-gather(%x), replica_groups={{{{0,1}}}}, dimensions={{0}}"
            for n in range(count)
        )
        text = (
            f"HloModule m, is_scheduled=true\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n"
            f"  %x = {ROW} parameter(0)\n{gathers}\n  ROOT %n = {ROW} negate(%x)\n}}\n"
        )
        names = [f"g{n}" for n in range(count)]
        memory = {name: n for n, name in enumerate(names)}
        plan = plan_of_text(text, memory, dict.fromkeys(names, (1, count)))
        leaves = (ArgumentLeaf(f"x{n}", (8,), "float32", 32, False, n) for n in range(count))
        return Program(plan, arguments=tuple(leaves))

    eight, nine = many(8), many(9)
    (violation,) = CollectiveCount(0).check(nine).violations
    assert violation.where == "g0, g1, g2, g3, g4, g5, g6, g7"
    (violation,) = GatheredLiveAtMost(0).check(eight).violations
    assert violation.found.endswith("g7 (64 B)")
    (violation,) = GatheredLiveAtMost(0).check(nine).violations
    assert violation.found.endswith("g7 (64 B), … 9 in total")
    (violation,) = LeavesTotal("y", 1).check(eight).violations
    assert violation.found == "the program has x0, x1, x2, x3, x4, x5, x6, x7"
    (violation,) = LeavesTotal("y", 1).check(nine).violations
    assert violation.found == "the program has x0, x1, x2, x3, x4, x5, x6, x7, … 9 in total"


@pytest.mark.parametrize(
    ("expectation", "text"),
    [
        (NoCopyAbove(1024, because="rows"), "NoCopyAbove(limit_bytes=1,024)"),
        (Donated("cache"), "Donated(name='cache')"),
        (Donated("cache", copies_up_to_bytes=8, under="cuda"), None),
        (NoValueOfShape((1, 2, 3, 4)), "NoValueOfShape(dims=(1, 2, 3, 4))"),
        (NoValueOfShape((1, 2, 3, 4, 5)), "NoValueOfShape(dims=(1, … 5 in total))"),
        (ParameterBytes(1, padded=True), "ParameterBytes(total_bytes=1, padded=True)"),
    ],
)
def test_an_expectation_is_shown_as_its_author_wrote_it(
    expectation: Expectation, text: str | None
) -> None:
    assert str(expectation) == (text or "Donated(name='cache', copies_up_to_bytes=8)")


TIMED = replace(
    PROGRAM,
    measured_seconds={"gemm": 9e-6, "conv": 2e-6, "loop": 2e-6, "triton": 2e-6, "sum": 1e-6},
    recorded_seconds={"gemm": 4e-6, "conv": 1e-6, "loop": 1.5e-6, "triton": 1e-6, "sum": 2.5e-6},
)


def test_a_step_slower_than_its_record_names_the_kernels_that_are() -> None:
    finding = SlowerThanRecord().check(TIMED)
    assert finding.measured == "16.0 µs in kernels, recorded 10.0 µs"
    (violation,) = finding.violations
    assert (violation.expected, violation.found) == (
        "at most 5% more than 10.0 µs",
        "16.0 µs, +60.0%",
    )
    # Three of the four, the largest difference first.
    assert violation.where == "gemm +5.0 µs, triton +1.0 µs, conv +1.0 µs"
    assert str(violation.source) == "step.py:13"
    assert SlowerThanRecord(0.6).check(TIMED).holds
    same = replace(TIMED, measured_seconds={"gemm": 8e-6}, recorded_seconds={"gemm": 4e-6})
    assert SlowerThanRecord(1.0).check(same).holds
    (violation,) = (
        SlowerThanRecord()
        .check(
            replace(
                TIMED,
                measured_seconds={"gemm": 9e-6, "new": 1e-6, "sum": 0.0},
                recorded_seconds={"gemm": 9e-6, "sum": 0.0},
            )
        )
        .violations
    )
    assert violation.where == "new +1.0 µs"


def test_a_predicted_time_names_its_gpu_and_the_longest_kernel() -> None:
    finding = StepTimeAtMost(0.0).check(PROGRAM)
    assert re.fullmatch(r"[\d.]+ µs predicted on NVIDIA H200", finding.measured)
    (violation,) = finding.violations
    assert violation.expected == "at most 0.0 µs"
    assert re.fullmatch(r"most in \w+, \d\d?\.\d µs", violation.where)
    seconds = float(finding.measured.partition(" ")[0]) * 1e-6
    assert StepTimeAtMost(seconds + 1e-7).check(PROGRAM).holds
    assert not StepTimeAtMost(seconds - 1e-7).check(PROGRAM).holds
    (violation,) = StepTimeAtMost(1.0).check(replace(PROGRAM, target=None)).violations
    assert violation.found == "a dump that does not name its target"


def test_bounds_include_their_limit() -> None:
    floor = step_cost(PROGRAM.plan, device_of_target("h200"))
    assert floor is not None and floor.floor_seconds is not None
    for expectation in (
        FloorAtMost(floor.floor_seconds, "h200"),
        LaunchesAtMost(floor.launches),
        TrafficAtMost(floor.traffic_bytes),
        ReadsAtMost("w", 2.0),
        TotalWithin(960, 0.1),
        BeyondAtMost(736, ("out",)),
        TempAtMost(736),
        ValuesOfShapeAtMost((8, 8), 3),
        NoValueAbove(256),
    ):
        assert expectation.check(PROGRAM).holds, expectation
    for expectation in (
        FloorAtMost(floor.floor_seconds * 0.999, "h200"),
        LaunchesAtMost(floor.launches - 1),
        TrafficAtMost(floor.traffic_bytes - 1),
        ReadsAtMost("w", 1.99),
        TotalWithin(959, 0.1),
        BeyondAtMost(735, ("out",)),
        TempAtMost(735),
        ValuesOfShapeAtMost((8, 8), 2),
    ):
        assert not expectation.check(PROGRAM).holds, expectation


def test_a_loop_of_unknown_trip_count_has_no_bound_of_traffic() -> None:
    text = TEXT.replace(TRIPS, "backend_config={}")
    program = Program(plan_of_text(text, MEMORY, ALIVE), target="h200")
    finding = TrafficAtMost(1).check(program)
    assert finding.measured == "unknown"
    assert finding.violations[0].found == "a while loop of unknown trip count"
    assert LoopOfTrips(3).check(program).measured == "trips: unknown"


@pytest.mark.parametrize(
    ("times", "text"), [(0, "0 times"), (1, "1 time"), (2.5, "2.5 times"), (10, "10 times")]
)
def test_numbers_of_times(times: float, text: str) -> None:
    assert counted_times(times) == text


@pytest.mark.parametrize(
    ("scope", "op_name", "inside"),
    [
        ("up", "jit(step)/up/dot_general", True),
        ("up", "jit(step)/transpose(jvp(up))/dot_general", True),
        ("up", "jit(step)/upper/dot_general", False),
        ("up", None, False),
    ],
)
def test_scopes_are_whole_segments_also_of_gradients(
    scope: str, op_name: str | None, inside: bool
) -> None:
    assert within_differentiated(scope, op_name) is inside


NOTHING = Program(
    plan_of_text(
        f"HloModule m, is_scheduled=true\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n"
        f"  %x = {ROW} parameter(0)\n  ROOT %n = {ROW} negate(%x)\n}}\n",
        {},
        {},
    ),
    requested_collectives=(),
    target="h200",
)


@pytest.mark.parametrize(
    ("expectation", "measured"),
    [
        (CollectiveBytes(0), "0 B of results in 0 collectives"),
        (CollectiveCount(0), "none"),
        (CollectiveCount(1, "no"), "unknown"),
        (CollectivesAskedFor(1, "no"), "unknown"),
        (ConvolutionCount(0), "0 of 0 convolutions"),
        (Donated("x"), "0 leaves, 0 B aliased"),
        (FusionCount(0), "none"),
        (GemmCount(0), "none"),
        (GatheredLiveAtMost(0), "0 B of 0 gathered values"),
        (LaunchesAtMost(0), "1 launch"),
        (LaunchesAtMost(1), "1 launch"),
        (NoAllocationAbove(0), "largest 0 B"),
        (NoCopyAbove(0), "0 copies, largest 0 B"),
        (NoUndefinedCopy(), "0 copies of undefined data"),
        (NoValueAbove(0), "largest 0 B"),
        (NotAliased(), "0 aliases in the module"),
        (ReadAtMost("x", 1), "read by 0 instructions"),
        (ReadsAtMost("x", 1), "read 0 times"),
        (BoundBy("memory"), "memory 100%"),
    ],
    ids=str,
)
def test_what_is_measured_of_a_program_of_one_kernel(
    expectation: Expectation, measured: str
) -> None:
    assert expectation.check(NOTHING).measured == measured


@pytest.mark.parametrize(
    ("expectation", "found"),
    [
        (CollectiveBytes(1), "0 B, -1 B"),
        (ConvolutionCount(1), "0 (all: none)"),
        (FusionCount(1), "0 (none)"),
        (GemmCount(1), "0 (none)"),
        (DeadCollective("all-gather", "a"), "none"),
        (CollectivesOverlap("all-gather"), "none (the program has: none)"),
        (TempAtMost(-1), "0 B, 1 B too many"),
    ],
    ids=str,
)
def test_what_is_found_in_a_program_of_one_kernel(expectation: Expectation, found: str) -> None:
    (violation,) = expectation.check(NOTHING).violations
    assert (violation.found, violation.where, violation.source) == (found, "", None)


@pytest.mark.parametrize(
    ("expectation", "where"),
    [
        (NoCopyAbove(31), ["allocation 10, value undefined", "allocation 11, value kept"]),
        (NoCopyInLoopAbove(31), ["allocation 11, value kept"]),
        (NoUndefinedCopy(), ["instruction undefined"]),
    ],
    ids=str,
)
def test_a_copy_that_xla_inserted_has_no_op_name(
    expectation: Expectation, where: list[str]
) -> None:
    text = re.sub(r", metadata=\{[^}]*\}", "", TEXT)
    violations = expectation.check(Program(plan_of_text(text, MEMORY, ALIVE))).violations
    assert sorted(violation.where for violation in violations) == where
    assert {violation.source for violation in violations} == {None}


def test_an_alias_of_an_argument_without_a_name_is_an_alias() -> None:
    (violation,) = NotAliased().check(replace(PROGRAM, arguments=())).violations
    assert (violation.expected, violation.found) == ("no alias", "aliased to out[0]")
    assert NotAliased("w").check(replace(PROGRAM, arguments=PROGRAM.arguments[1:])).holds


def test_a_tpu_has_no_gemm_policies() -> None:
    on_tpu = Program(Plan((), platform="tpu"), gemm_policy="auto")
    expectations = (TempAtMost(0, under="auto"), TempAtMost(1, under="tpu"), TempAtMost(2))
    findings = check_all(expectations, on_tpu)
    assert [finding.expectation[-14:] for finding in findings] == [
        "limit_bytes=1)",
        "limit_bytes=2)",
    ]
    assert len(check_all(expectations, replace(on_tpu, plan=Plan(())))) == 2


def test_a_misspelled_name_is_answered_with_the_one_that_was_meant() -> None:
    paths = [f"model['layers'][{number}]['kernel']" for number in range(9)]
    leaves = (ArgumentLeaf(path, (8,), "float32", 32, False, n) for n, path in enumerate(paths))
    program = replace(PROGRAM, arguments=tuple(leaves), outputs=())
    (violation,) = Donated("modle").check(program).violations
    assert violation.found == "the program has model"
    assert violation.advice.startswith("did you mean 'model'? ")
