"""Copies between device memory and pinned host memory, which XLA marks as `S(5)`."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans import BufferAllocation, Plan
from xlapipe.plans.host_transfers import HostTransfer, find_host_transfers

DEVICE, HOST = "f32[8]{0}", "f32[8]{0:S(5)}"
ROW, HOST_ROW = "f32[2]{0}", "f32[2]{0:S(5)}"


def transfers(entry: str, *computations: str) -> list[tuple[str, str, int, bool]]:
    text = "\n".join(
        ("HloModule m, is_scheduled=true\n", *computations, "ENTRY %main (x: f32[8]) -> f32[8] {")
    )
    module = plan_of_text(f"{text}{entry}}}\n").module
    plan = Plan((BufferAllocation(0, 32, (), color=5),), module=module)
    return [row(transfer) for transfer in find_host_transfers(plan)]


def row(transfer: HostTransfer) -> tuple[str, str, int, bool]:
    return (
        transfer.instruction,
        transfer.direction,
        transfer.moved_bytes,
        transfer.asynchronous,
    )


def test_copies_to_the_host_and_back() -> None:
    rows = transfers(f"""
  %x = {DEVICE} parameter(0)
  %s = ({HOST}, {DEVICE}, u32[]) copy-start(%x)
  %d = {HOST} copy-done(%s)
  %stays = {HOST} copy(%d)
  %b = {DEVICE} copy(%stays)
  ROOT %n = {DEVICE} copy(%b)
""")
    assert rows == [("s", "to_host", 32, True), ("b", "to_device", 32, False)]


@pytest.mark.parametrize("opcode", ["dynamic-slice", "slice"])
def test_a_slice_moves_only_its_own_bytes(opcode: str) -> None:
    rows = transfers(f"""
  %x = {HOST} parameter(0)
  %i = s32[] parameter(1)
  ROOT %row = {ROW} {opcode}(%x, %i)
""")
    assert rows == [("row", "to_device", 8, False)]


def test_an_update_of_host_memory_moves_the_update() -> None:
    rows = transfers(f"""
  %x = {HOST} parameter(0)
  %u = {ROW} parameter(1)
  %i = s32[] parameter(2)
  ROOT %kept = {HOST} dynamic-update-slice(%x, %u, %i)
""")
    assert rows == [("kept", "to_host", 8, False)]


@pytest.mark.parametrize("caller", ["fusion", "async-start"])
def test_a_move_inside_of_a_fusion_or_asynchronous_kernel(caller: str) -> None:
    is_fusion = caller == "fusion"
    result = ROW if is_fusion else f"(({HOST}, s32[]), {ROW})"
    end = f"ROOT %d = {ROW} {'copy' if is_fusion else 'async-done'}(%f)"
    rows = transfers(
        f"""
  %x = {HOST} parameter(0)
  %i = s32[] parameter(1)
  %f = {result} {caller}(%x, %i), {"kind=kLoop, " if is_fusion else ""}calls=%body
  {end}
""",
        f"""%body (y: f32[8], j: s32[]) -> f32[2] {{
  %y = {HOST} parameter(0)
  %j = s32[] parameter(1)
  ROOT %row = {ROW} dynamic-slice(%y, %j), dynamic_slice_sizes={{2}}
}}
""",
    )
    assert rows == [("f", "to_device", 8, not is_fusion)]


def test_a_plan_without_host_memory_has_no_transfers() -> None:
    plan = plan_of_text(f"""HloModule m, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = {DEVICE} parameter(0)
  ROOT %n = {DEVICE} copy(%x)
}}
""")
    assert find_host_transfers(plan) == ()
