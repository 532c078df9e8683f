"""Reference dump 003 (a Qwen3-0.6B step, see docs/lab/seeds.md), in the one-file layout."""

from tests.shared.dumps import SEED_003, needs_seed_003
from xlapipe.dump.readers import read_path
from xlapipe.plans import AllocationKind

pytestmark = needs_seed_003


def test_totals() -> None:
    plan = read_path(SEED_003)
    totals = plan.totals
    assert len(plan.allocations) == 26
    assert totals.total_allocation_bytes == plan.total_bytes_used == 932_847_568
    assert totals.parameter_bytes == 653_597_956
    assert totals.live_out_bytes == 277_938_208
    assert totals.temp_bytes == 1_311_392
    assert totals.thread_local_bytes == 12
    assert totals.constant_bytes == totals.aliased_bytes == 0


def test_live_ranges() -> None:
    live = read_path(SEED_003).live_ranges
    assert live is not None
    assert live.live_range_peak_position == 58
    assert live.live_range_peak_bytes == 931_536_164
    assert len(live.schedule) == 66
    assert (live.schedule[0], live.schedule[65]) == ("p1.4.0", "tuple.292.0")
    ranges = {entry.name: (entry.start, entry.end) for entry in live.ranges}
    assert ranges["custom-call.9.0{0}"] == (49, 52)
    assert ranges["custom-call.9.0{}"] == (49, 50)
    assert ranges["gemm_fusion_dot.7.0"] == (35, 48)


def test_nothing_is_donated() -> None:
    plan = read_path(SEED_003)
    assert plan.header_aliases is None
    assert plan.aliases == ()
    (cache,) = (a for a in plan.allocations if a.parameter_number == 16)
    assert cache.kinds == (AllocationKind.PARAMETER,)
    assert cache.size_bytes == 277_413_888


def test_instructions_are_read_from_the_used_values() -> None:
    plan = read_path(SEED_003)
    assert plan.module is not None
    assert not plan.module.complete
    assert plan.thunks is None
    targets = [i.custom_call_target for i in plan.instructions.values() if i.custom_call_target]
    assert targets == ["__cublas$gemm"] * 5
    kinds = [i.fusion_backend_kind for i in plan.instructions.values()]
    assert kinds.count("__triton_gemm") == 1
    assert kinds.count("__triton") == 4
    gemm = plan.instructions["gemm_fusion_dot.7.0"]
    assert gemm.operands == ("p.2", "p.3")
    assert gemm.called_computations == ("gemm_fusion_dot.7_computation",)
    assert gemm.op_name == "aten__mm"
    assert str(gemm.source) == "/usr/local/lib/python3.10/site-packages/torch/_ops.py:756"


def test_the_arena_is_ordered_by_offset() -> None:
    arena = read_path(SEED_003).allocations[25]
    assert [value.offset_bytes for value in arena.values] == sorted(
        value.offset_bytes for value in arena.values
    )
    assert arena.values[0].name == "custom-call.8.0{}"
    assert arena.values[0].shape.text == "(bf16[128,1024]{1,0}, s8[4194304]{0})"
