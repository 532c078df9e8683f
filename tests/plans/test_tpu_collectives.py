"""Collectives of TPUs: fusions for one all-gather or reduce-scatter, and those between slices."""

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.instruction_attributes import transfer_of, transfer_of_text
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans import Plan
from xlapipe.plans.collectives import Collective, find_collectives
from xlapipe.plans.gemms import find_gemms
from xlapipe.plans.verify import collective_mismatches

PADDED = "bf16[8512,8192]{1,0:T(8,128)(2,1)}"
KEPT = "bf16[2128,8192]{1,0:T(8,128)(2,1)}"

HLO = (
    Path(__file__)
    .with_name("texts")
    .joinpath("tpu_collectives_hlo.txt")
    .read_text(encoding="utf-8")
)


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
        assert not list(collective_mismatches(plan))
    assert last.operand_bytes is not None
    assert last.output_bytes == 2 * last.operand_bytes
    narrowed = replace(last, operand_bytes=last.output_bytes, output_bytes=last.operand_bytes)
    plan.__dict__["collectives"] = (narrowed,)
    assert not list(collective_mismatches(plan))


def between_slices(kind: str, target: str, sent: str, received: str) -> str:
    """A send and a recv, with a product between them, and the same of another rendezvous."""
    flag, token, types = "u32[]{:S(2)}", "token[]", ":T(8,128)(2,1)"
    x, r = f"bf16[{sent}]{{1,0{types}}}", f"bf16[{received}]{{1,0{types}}}"

    def attributes(rendezvous: str) -> str:
        return (
            "is_host_transfer=true, frontend_attributes={"
            '_xla_host_transfer_handler_name="xla_megascale_runtime",'
            f'_xla_host_transfer_rendezvous="{rendezvous}",'
            f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
        )

    return dedent(f"""\
        HloModule jit_step, is_scheduled=true

        ENTRY %main (x: bf16[{sent}]) -> (bf16[{received}], bf16[{received}]) {{
          %x = {x} parameter(0)
          %after-all = {token} after-all()
          %send.1 = ({x}, {flag}, {token}) send(%x, %after-all), channel_id=2, {attributes("a_0")}
          %recv.2 = ({r}, {flag}, {token}) recv(%after-all), channel_id=3, {attributes("b_0")}
          %recv.1 = ({r}, {flag}, {token}) recv(%after-all), channel_id=1, {attributes("a_0")}
          %product = {x} multiply(%x, %x)
          %send-done.1 = {token} send-done(%send.1), channel_id=2, is_host_transfer=true
          %recv-done.1 = ({r}, {token}) recv-done(%recv.1), channel_id=1, is_host_transfer=true
          %send.2 = ({x}, {flag}, {token}) send(%product, %after-all), channel_id=4, \
        {attributes("b_0")}
          %send-done.2 = {token} send-done(%send.2), channel_id=4, is_host_transfer=true
          %recv-done.2 = ({r}, {token}) recv-done(%recv.2), channel_id=3, is_host_transfer=true
          ROOT %result = ({r}, {r}) tuple(%recv-done.1#0, %recv-done.2#0)
        }}
        """)


def test_a_send_and_a_recv_are_one_collective() -> None:
    text = between_slices("ALL_GATHER", '"{1,2}x{0:3}"', "512,512", "1024,512")
    first, second = collectives(text)
    assert (first.kind, first.instruction, first.done) == ("all-gather", "send.1", "recv-done.1")
    assert first.defined_by == ("send.1", "recv.1")
    assert (first.operand_bytes, first.output_bytes) == (512 * 512 * 2, 1024 * 512 * 2)
    assert first.wire_bytes == 512 * 512 * 2
    assert first.replica_groups == tuple((100_000 + n, 200_000 + n) for n in range(4))
    assert (first.between_slices, first.asynchronous) == (True, True)
    assert first.overlapped_by == ("product",)
    assert (second.instruction, second.done) == ("send.2", "recv-done.2")
    assert second.overlapped_by == ()


@pytest.mark.parametrize(
    ("kind", "sent", "received", "name"),
    [
        ("ALL_REDUCE", "512,512", "512,512", "all-reduce"),
        ("REDUCE_SCATTER", "512,512", "256,512", "reduce-scatter"),
        ("ALL_TO_ALL", "512,512", "512,512", "all-to-all"),
    ],
)
def test_collectives_between_slices_by_type(kind: str, sent: str, received: str, name: str) -> None:
    groups = "{{100000,200000},{100001,200001}}"
    text = between_slices(kind, groups, sent, received)
    first, _ = collectives(text)
    assert (first.kind, first.group_size) == (name, 2)
    assert first.devices == "{100000,200000},{100001,200001}"
    module = parse_hlo(SourceText("after_optimizations.txt", text)).module
    plan = Plan(allocations=(), module=module, platform="tpu")
    assert [collective.kind for collective in plan.collectives or ()] == [name, name]
    assert not list(collective_mismatches(plan))


def test_a_permutation_between_slices() -> None:
    target = "{{100000->200000},{200000->100000}}"
    first, _ = collectives(between_slices("ONE_TO_ONE", target, "512,512", "512,512"))
    assert first.kind == "collective-permute"
    assert first.source_target_pairs == ((100_000, 200_000), (200_000, 100_000))


@pytest.mark.parametrize("kind", ["BARRIER", ""])
def test_other_transfers_to_the_host_are_no_collectives(kind: str) -> None:
    assert collectives(between_slices(kind, '"{1,2}x{0:3}"', "512,512", "512,512")) == ()
    assert transfer_of_text('{_xla_host_transfer_handler_name="other"}') is None


@pytest.mark.parametrize("target", ["", "{1,2}", "{1,2}x{0-3}", "1x2"])
def test_devices_of_an_unknown_form_are_no_collective(target: str) -> None:
    attributes = {
        "_xla_megascale_transfer_type": "ALL_REDUCE",
        "_xla_megascale_target": target,
    }
    assert transfer_of(attributes) is None


def test_devices_of_slices_as_lists_and_ranges() -> None:
    attributes = {
        "_xla_megascale_transfer_type": "ALL_REDUCE",
        "_xla_megascale_target": "{1,3}x{0,4:5}",
    }
    groups = transfer_of(attributes)
    assert groups is not None
    assert groups.replica_groups == ((100000, 300000), (100004, 300004), (100005, 300005))


def test_a_collective_on_sparse_cores_is_one_that_starts_with_its_operands() -> None:
    """TPU7x: the start reserves the core; an update hands the operand over."""
    whole, part = "bf16[1024,512]{1,0:T(8,128)(2,1)}", "bf16[128,512]{1,0:T(8,128)(2,1)}"
    text = f"""HloModule jit_step, is_scheduled=true

%called (p: bf16[1024,512]) -> bf16[128,512] {{
  %p = {whole} parameter(0)
  ROOT %reduce-scatter.3 = {part} reduce-scatter(%p), channel_id=2, \
replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, to_apply=%add
}}, execution_thread="sparsecore"

%async (p.1: bf16[1024,512]) -> bf16[128,512] {{
  %p.1 = {whole} parameter(0)
  ROOT %call = {part} call(%p.1), to_apply=%called
}}, execution_thread="sparsecore"

ENTRY %main (x: bf16[1024,512]) -> bf16[128,512] {{
  %x = {whole} parameter(0)
  %start = ((), (), s32[]{{:S(2)}}) async-start(), async_execution_thread="sparsecore", calls=%async
  %negate = {whole} negate(%x)
  %update = (({whole}), {part}) async-update(%start, %negate)
  %exponential = {whole} exponential(%x)
  ROOT %done = {part} async-done(%update)
}}
"""
    (scatter,) = collectives(text.replace("\\\n", ""))
    assert (scatter.instruction, scatter.kind, scatter.done) == ("start", "reduce-scatter", "done")
    assert (scatter.operand_bytes, scatter.output_bytes) == (1024 * 512 * 2, 128 * 512 * 2)
    assert scatter.operands == ("negate",)
    assert (scatter.asynchronous, scatter.overlapped_by) == (True, ("exponential",))
