"""A program of a few kernels, for the tests of what expectations find."""

from dataclasses import replace

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.plans import AllocationKind, BufferAllocation, InputOutputAlias
from xlapipe.plans.program import (
    ArgumentLeaf,
    OutputLeaf,
    Program,
    RequestedCollective,
    RequestedDot,
)

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
    return program_of(
        plan,
        gemm_policy="cublas",
        arguments=(
            ArgumentLeaf("x", (8,), "float32", 32, True, 0),
            ArgumentLeaf("w", (8, 8), "float32", 256, False, 1),
            ArgumentLeaf("h", (8,), "float32", 32, False, 2),
        ),
        outputs=(
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
