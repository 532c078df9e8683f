"""Collectives of TPUs: three fusions for one all-gather, and a reduce-scatter as a fusion."""

from xlapipe.plan import Plan
from xlapipe.plan.collectives import Collective, find_collectives
from xlapipe.plan.gemms import find_gemms
from xlapipe.plan.verify_collectives import collective_mismatch
from xlapipe.read.hlo_text import parse_hlo
from xlapipe.read.source_text import SourceText

SHARD = "bf16[2048,8192]{1,0:T(8,128)(2,1)}"
WHOLE = "bf16[8192,8192]{1,0:T(8,128)(2,1)}"
PADDED = "bf16[8512,8192]{1,0:T(8,128)(2,1)}"
KEPT = "bf16[2128,8192]{1,0:T(8,128)(2,1)}"
STATE = "s32[2]{0:S(4)}"
GATHER = "replica_groups={{0,1,2,3}}, dimensions={0}, channel_id=1"
DOT = 'metadata={op_name="jit(step)/dot_general"}'

HLO = f"""HloModule jit_step, is_scheduled=true

%start (p.1: bf16[2048,8192]) -> (bf16[8192,8192], s32[2]) {{
  %p.1 = {SHARD} parameter(0)
  %all-gather.1 = {WHOLE} all-gather(%p.1), {GATHER}
  ROOT %call.1 = ({WHOLE}, {STATE}) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}}

%middle (p.2: bf16[2048,8192], s.2: s32[2], x.2: bf16[8192,8192]) -> (bf16[8192,8192], s32[2]) {{
  %p.2 = {SHARD} parameter(0)
  %s.2 = {STATE} parameter(1)
  %x.2 = {WHOLE} parameter(2)
  %all-gather.2 = {WHOLE} all-gather(%p.2), {GATHER}
  %convolution.2 = {WHOLE} convolution(%x.2, %x.2), dim_labels=bf_io->bf, {DOT}
  ROOT %tuple.2 = ({WHOLE}, {STATE}) tuple(%convolution.2, %s.2)
}}

%end (p.3: bf16[2048,8192], s.3: s32[2]) -> bf16[8192,8192] {{
  %p.3 = {SHARD} parameter(0)
  %s.3 = {STATE} parameter(1)
  %all-gather.3 = {WHOLE} all-gather(%p.3), {GATHER}
  ROOT %call.3 = {WHOLE} custom-call(%all-gather.3, %s.3), \
custom_call_target="AsyncCollectiveDone"
}}

%add (a.4: bf16[], b.4: bf16[]) -> bf16[] {{
  %a.4 = bf16[]{{:T(256)}} parameter(0)
  %b.4 = bf16[]{{:T(256)}} parameter(1)
  ROOT %add.4 = bf16[]{{:T(256)}} add(%a.4, %b.4)
}}

%all-reduce-scatter (p.5: bf16[8192,8192]) -> bf16[2128,8192] {{
  %p.5 = {WHOLE} parameter(0)
  %zero.5 = bf16[] constant(0)
  %pad.5 = {PADDED} pad(%p.5, %zero.5), padding=0_320x0_0
  %all-reduce.5 = {PADDED} all-reduce(%pad.5), replica_groups={{{{0,1,2,3}}}}, to_apply=%add
  %id.5 = u32[] partition-id()
  ROOT %dynamic-slice.5 = {KEPT} dynamic-slice(%all-reduce.5, %id.5, %id.5), \
dynamic_slice_sizes={{2128,8192}}
}}

ENTRY %main (x: bf16[8192,8192], w: bf16[2048,8192]) -> (bf16[8192,8192], bf16[2128,8192]) {{
  %x = {WHOLE} parameter(0)
  %w = {SHARD} parameter(1)
  %async-start = ({WHOLE}, {STATE}) fusion(%w), kind=kCustom, calls=%start
  %product = ({WHOLE}, {STATE}) fusion(%w, %async-start, %x), kind=kOutput, calls=%middle
  %async-done = {WHOLE} fusion(%w, %product), kind=kCustom, calls=%end
  %scatter = {KEPT} fusion(%async-done), kind=kCustom, calls=%all-reduce-scatter
  ROOT %result = ({WHOLE}, {KEPT}) tuple(%async-done, %scatter)
}}
"""


def collectives(text: str = HLO) -> tuple[Collective, ...]:
    module = parse_hlo(SourceText("after_optimizations.txt", text)).module
    return find_collectives(module, find_gemms(module), None)


def test_three_fusions_are_one_collective() -> None:
    gather, _ = collectives()
    assert (gather.kind, gather.instruction, gather.done) == (
        "all-gather",
        "async-start",
        "async-done",
    )
    assert (gather.operand_bytes, gather.output_bytes) == (33_554_432, 134_217_728)
    assert gather.asynchronous
    assert (gather.overlapped_by, gather.overlapped_gemms) == (("product",), 1)


def test_an_all_reduce_of_which_a_slice_is_kept_is_a_reduce_scatter() -> None:
    _, scatter = collectives()
    assert (scatter.kind, scatter.instruction) == ("reduce-scatter", "scatter")
    # The operand without padding, and the result with the rows that XLA adds.
    assert (scatter.operand_bytes, scatter.output_bytes) == (134_217_728, 2128 * 8192 * 2)
    assert not scatter.asynchronous


def test_the_same_fusion_without_tiles_is_an_all_reduce() -> None:
    *_, scatter = collectives(HLO.replace(":T(8,128)(2,1)", ""))
    assert scatter.kind == "all-reduce"


def test_a_plan_with_padded_and_widened_sums_is_accepted() -> None:
    """XLA for TPUs may sum bfloat16 to float32, and pads what it scatters."""
    widened = PADDED.replace("bf16", "f32")
    text = HLO.replace(f"%all-reduce.5 = {PADDED}", f"%all-reduce.5 = {widened}")
    text = text.replace("ROOT %dynamic-slice.5", "%kept.5").replace(
        "dynamic_slice_sizes={2128,8192}\n",
        f"dynamic_slice_sizes={{2128,8192}}\n  ROOT %rounded.5 = {KEPT} convert(%kept.5)\n",
    )
    for hlo, kind in ((HLO, "reduce-scatter"), (text, "all-reduce")):
        module = parse_hlo(SourceText("after_optimizations.txt", hlo)).module
        plan = Plan(allocations=(), module=module, platform="tpu")
        *_, last = plan.collectives or ()
        assert last.kind == kind
        assert collective_mismatch(plan) is None
    assert last.operand_bytes is not None
    assert last.output_bytes == 2 * last.operand_bytes
