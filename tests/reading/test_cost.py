"""What kernels must read, write and compute, in closed form for small programs."""

from dataclasses import replace

import pytest

from tests.reading.small_hlo import plan_of_text
from xlapipe.cost import KernelCost, StepCost, step_cost
from xlapipe.cost.fingerprint import fingerprint
from xlapipe.cost.schedule import Site, schedule_of
from xlapipe.plans.stated_cost import StatedCost
from xlapipe.targets.device import Device

# One byte takes a microsecond, and so does one operation.
SLOW = Device(
    name="slow",
    row=None,
    cores=132,
    bandwidth=10**6,
    l2_bytes=0,
    vector_flops=1e6,
    peak_flops={"bf16": 1e6, "tf32": 5e5, "f8": 2e6},
    link_bandwidth=10**5,
)


def cost_of(text: str, memory: dict[str, int] | None = None, l2_bytes: int = 0) -> StepCost:
    speeds = Device(
        name="slow",
        row=None,
        cores=132,
        bandwidth=SLOW.bandwidth,
        l2_bytes=l2_bytes,
        vector_flops=SLOW.vector_flops,
        peak_flops=SLOW.peak_flops,
        link_bandwidth=SLOW.link_bandwidth,
    )
    cost = step_cost(plan_of_text(text, memory), speeds)
    assert cost is not None
    return cost


def kernel(cost: StepCost, name: str) -> KernelCost:
    return next(kernel for kernel in cost.kernels if kernel.name == name)


def module(entry: str, *computations: str) -> str:
    return "HloModule m, is_scheduled=true\n\n" + "\n".join(
        (*computations, "ENTRY %main (p: f32[]) -> f32[] {", entry.strip("\n"), "}", "")
    )


ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def test_elementwise_fusion_reads_operands_and_writes_result() -> None:
    body = """%body (x: f32[100], y: f32[100]) -> f32[100] {
  %x = f32[100]{0} parameter(0)
  %y = f32[100]{0} parameter(1)
  %product = f32[100]{0} multiply(%x, %y)
  ROOT %sum = f32[100]{0} add(%product, %x)
}
"""
    entry = """
  %a = f32[100]{0} parameter(0)
  %b = f32[100]{0} parameter(1)
  ROOT %f = f32[100]{0} fusion(%a, %b), kind=kLoop, calls=%body
"""
    cost = cost_of(module(entry, body))
    row = kernel(cost, "f")
    assert (row.read_bytes, row.written_bytes, row.total_flops) == (800, 400, 0)
    assert (cost.traffic_bytes, cost.traffic_at_most_bytes, cost.launches) == (1200, 1200, 1)
    assert cost.floor_seconds == pytest.approx(1200e-6)
    assert row.bound == "memory"


def test_slices_and_gathers_read_what_they_address() -> None:
    body = """%body (x: f32[1000,8], i: s32[], j: s32[3]) -> f32[5,8] {
  %x = f32[1000,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %j = s32[3]{0} parameter(2)
  %zero = s32[] constant(0)
  %c = bf16[1000,8]{1,0} convert(%x)
  %one = bf16[2,8]{1,0} dynamic-slice(%c, %i, %zero), dynamic_slice_sizes={2,8}
  %some = bf16[3,8]{1,0} gather(%c, %j), offset_dims={1}, slice_sizes={1,8}
  ROOT %all = bf16[5,8]{1,0} concatenate(%one, %some), dimensions={0}
}
"""
    entry = """
  %a = f32[1000,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %j = s32[3]{0} parameter(2)
  ROOT %f = bf16[5,8]{1,0} fusion(%a, %i, %j), kind=kLoop, calls=%body
"""
    row = kernel(cost_of(module(entry, body)), "f")
    # Two rows and three rows of 8 float32 each, and the indices.
    assert row.read_bytes == (2 + 3) * 8 * 4 + 4 + 12
    assert row.written_bytes == 5 * 8 * 2


UPDATE = """%body (x: f32[1000,8], u: f32[1,8], i: s32[]) -> f32[1000,8] {
  %x = f32[1000,8]{1,0} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %d = f32[1000,8]{1,0} dynamic-update-slice(%x, %u, %i, %zero)
}
"""
UPDATE_ENTRY = """
  %cache = f32[1000,8]{1,0} parameter(0)
  %new = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %f = f32[1000,8]{1,0} fusion(%cache, %new, %i), kind=kLoop, calls=%body
"""


def test_update_in_place_writes_only_its_slice() -> None:
    cost = cost_of(module(UPDATE_ENTRY, UPDATE), {"cache": 0, "f": 0, "new": 1})
    row = kernel(cost, "f")
    assert (row.read_bytes, row.written_bytes) == (32 + 4, 32)


def test_update_of_other_memory_copies_the_rest() -> None:
    cost = cost_of(module(UPDATE_ENTRY, UPDATE), {"cache": 0, "f": 2, "new": 1})
    row = kernel(cost, "f")
    assert (row.read_bytes, row.written_bytes) == (999 * 32 + 32 + 4, 32_000)


@pytest.mark.parametrize(("root", "read"), [("%b", 0), ("%sum", 2 * 32)])
def test_scatter_in_place_reads_old_values_only_to_combine_them(root: str, read: int) -> None:
    combine = f"""%combine (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  {"ROOT " if root == "%b" else ""}%b = f32[] parameter(1)
  {"ROOT " if root == "%sum" else ""}%sum = f32[] add(%a, %b)
}}
"""
    entry = """
  %cache = f32[1000,8]{1,0} parameter(0)
  %rows = s32[2,1]{1,0} parameter(1)
  %new = f32[2,8]{1,0} parameter(2)
  ROOT %s = f32[1000,8]{1,0} scatter(%cache, %rows, %new), to_apply=%combine
"""
    cost = cost_of(module(entry, combine), {"cache": 0, "s": 0, "rows": 1, "new": 2})
    row = kernel(cost, "s")
    assert (row.read_bytes, row.written_bytes) == (read + 8 + 64, 64)


def test_dot_counts_two_operations_per_term_at_the_peak_of_its_type() -> None:
    body = """%body (x: bf16[4,16], y: bf16[16,8]) -> f32[4,8] {
  %x = bf16[4,16]{1,0} parameter(0)
  %y = bf16[16,8]{1,0} parameter(1)
  ROOT %d = f32[4,8]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    entry = """
  %a = bf16[4,16]{1,0} parameter(0)
  %b = bf16[16,8]{1,0} parameter(1)
  ROOT %f = f32[4,8]{1,0} fusion(%a, %b), kind=kCustom, calls=%body
"""
    row = kernel(cost_of(module(entry, body)), "f")
    assert row.flops == {"bf16": 2 * 4 * 16 * 8}
    assert row.compute_seconds == pytest.approx(1024e-6)
    assert (row.memory_seconds, row.bound) == (pytest.approx(512e-6), "compute")


def test_algorithm_decides_the_type_and_convolutions_count_their_kernel() -> None:
    entry = """
  %a = f32[2,16]{1,0} parameter(0)
  %b = f32[16,3]{1,0} parameter(1)
  %d = f32[2,3]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
algorithm=dot_bf16_bf16_f32
  %i = f32[1,10,10,4]{3,2,1,0} parameter(2)
  %k = f32[3,3,4,6]{3,2,1,0} parameter(3)
  ROOT %c = f32[1,8,8,6]{3,2,1,0} convolution(%i, %k), window={size=3x3}, \
dim_labels=b01f_01io->b01f
"""
    cost = cost_of(module(entry))
    assert kernel(cost, "d").flops == {"bf16": 2 * 2 * 3 * 16}
    assert kernel(cost, "c").flops == {"f32": 2 * (8 * 8 * 6) * (3 * 3 * 4)}
    # float32 runs at the peak of tf32, which is 500,000 operations per second here.
    assert kernel(cost, "c").compute_seconds == pytest.approx(2 * 8 * 8 * 6 * 36 / 5e5)


def test_gemm_call_leaves_out_the_workspace() -> None:
    config = (
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"rhs_contracting_dimensions":["1"]}}}'
    )
    entry = f"""
  %a = f8e4m3fn[4,16]{{1,0}} parameter(0)
  %b = f8e4m3fn[8,16]{{1,0}} parameter(1)
  ROOT %g = (bf16[4,8]{{1,0}}, s8[4096]{{0}}) custom-call(%a, %b), \
custom_call_target="__cublas$lt$matmul$f8", backend_config={config}
"""
    row = kernel(cost_of(module(entry)), "g")
    assert (row.read_bytes, row.written_bytes) == (4 * 16 + 8 * 16, 4 * 8 * 2)
    assert row.flops == {"f8e4m3fn": 2 * 4 * 8 * 16}
    assert row.compute_seconds == pytest.approx(1024 / 2e6)


def test_pallas_kernel_that_updates_in_place_touches_an_unknown_part() -> None:
    entry = """
  %x = f32[10]{0} parameter(0)
  %cache = f32[100]{0} parameter(1)
  ROOT %p = (f32[10]{0}, f32[100]{0}) custom-call(%x, %cache), \
custom_call_target="__gpu$xla.gpu.triton"
"""
    cost = cost_of(module(entry), {"x": 0, "cache": 1, "p{0}": 2, "p{1}": 1})
    row = kernel(cost, "p")
    assert (row.read_bytes, row.written_bytes, row.unknown_bytes) == (40, 40, 800)
    assert row.flops is None
    assert (cost.traffic_bytes, cost.traffic_at_most_bytes) == (80, 880)


@pytest.mark.parametrize(
    ("stated", "written_bytes"),
    [
        # It writes 40 bytes beside its operands, and could read 40 beside the cache.
        (StatedCost("mine", None, 60, 1000), 40),
        (StatedCost("mine", None, 20), 20),
        (StatedCost("mine", None, 1000), 40),
        (StatedCost("mine", 440, 60), 40),
        (StatedCost("mine", 439, 60), None),
        (StatedCost("other", None, 60), None),
    ],
)
def test_a_pallas_kernel_touches_what_its_author_states(
    stated: StatedCost, written_bytes: int | None
) -> None:
    entry = """
  %x = f32[10]{0} parameter(0)
  %cache = f32[100]{0} parameter(1)
  ROOT %p = (f32[10]{0}, f32[100]{0}) custom-call(%x, %cache), \
custom_call_target="__gpu$xla.gpu.triton", backend_config={name = "mine"}
"""
    plan = plan_of_text(module(entry), {"x": 0, "cache": 1, "p{0}": 2, "p{1}": 1})
    cost = step_cost(replace(plan, stated_costs=(stated,)), SLOW)
    assert cost is not None
    row = kernel(cost, "p")
    assert row.stated == (written_bytes is not None)
    if written_bytes is None:
        assert row.unknown_bytes == 800
        return
    assert (row.touched_bytes, row.unknown_bytes) == (stated.accessed_bytes, 0)
    assert row.written_bytes == written_bytes
    assert row.memory_seconds == pytest.approx(stated.accessed_bytes * 1e-6)
    assert sum(cost.read_bytes_of.values()) == row.read_bytes


TWO_KERNELS = """
  %a = f32[100]{0} parameter(0)
  %b = f32[100]{0} negate(%a)
  ROOT %c = f32[100]{0} negate(%b)
"""


@pytest.mark.parametrize(("l2_bytes", "cached"), [(0, 0), (200, 200), (800, 400), (10**6, 400)])
def test_value_just_written_is_read_from_the_cache_as_far_as_it_fits(
    l2_bytes: int, cached: int
) -> None:
    cost = cost_of(module(TWO_KERNELS), {"a": 0, "b": 1, "c": 2}, l2_bytes)
    second = kernel(cost, "c")
    assert (second.read_bytes, second.cached_bytes) == (400, cached)
    assert cost.traffic_bytes == 1600
    assert cost.floor_seconds == pytest.approx((1600 - cached) * 1e-6)


LOOP = """%body (t: (s32[], f32[100])) -> (s32[], f32[100]) {
  %t = (s32[], f32[100]{0}) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %x = f32[100]{0} get-tuple-element(%t), index=1
  %y = f32[100]{0} negate(%x)
  ROOT %r = (s32[], f32[100]{0}) tuple(%n, %y)
}

%condition (s: (s32[], f32[100])) -> pred[] {
  %s = (s32[], f32[100]{0}) parameter(0)
  %m = s32[] get-tuple-element(%s), index=0
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%m, %limit), direction=LT
}
"""


def loop_entry(config: str) -> str:
    return f"""
  %start = (s32[], f32[100]{{0}}) parameter(0)
  ROOT %w = (s32[], f32[100]{{0}}) while(%start), condition=%condition, body=%body{config}
"""


def test_loop_counts_its_trips_and_does_not_compute_its_condition() -> None:
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    cost = cost_of(module(loop_entry(known), LOOP))
    assert {kernel.name: kernel.launches for kernel in cost.kernels} == {"y": 7}
    assert cost.traffic_bytes == cost.traffic_at_most_bytes == 7 * 800
    without_speeds = step_cost(plan_of_text(module(loop_entry(known), LOOP)))
    assert without_speeds is not None
    (row,) = without_speeds.kernels
    assert (row.launches, row.memory_seconds, row.floor_seconds) == (7, None, None)


def test_what_a_loop_reads_in_each_trip_is_the_memory_that_it_starts_with() -> None:
    body = """%body (t: (f32[100], f32[100])) -> (f32[100], f32[100]) {
  %t = (f32[100]{0}, f32[100]{0}) parameter(0)
  %kept = f32[100]{0} get-tuple-element(%t), index=0
  %x = f32[100]{0} get-tuple-element(%t), index=1
  %y = f32[100]{0} add(%kept, %x)
  ROOT %r = (f32[100]{0}, f32[100]{0}) tuple(%kept, %y)
}

%condition (s: (f32[100], f32[100])) -> pred[] {
  %s = (f32[100]{0}, f32[100]{0}) parameter(0)
  ROOT %go = pred[] constant(true)
}
"""
    entry = """
  %p = f32[100]{0} parameter(0)
  %q = f32[100]{0} parameter(1)
  %start = (f32[100]{0}, f32[100]{0}) tuple(%p, %q)
  %w = (f32[100]{0}, f32[100]{0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"7"}}
  %after = f32[100]{0} get-tuple-element(%w), index=0
  ROOT %out = f32[100]{0} negate(%after)
"""
    cost = cost_of(module(entry, body), {"p": 0, "q": 1, "y": 1, "out": 2})
    # Once more after the loop.
    assert cost.read_bytes_of == {(0, 0): 8 * 400, (1, 0): 7 * 400}


def test_loop_of_unknown_trip_count_has_no_most() -> None:
    cost = cost_of(module(loop_entry(""), LOOP))
    assert kernel(cost, "y").launches == 1
    assert (cost.traffic_bytes, cost.traffic_at_most_bytes) == (800 + 2 * 9, None)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_conditional_is_a_range(order: tuple[int, int, int]) -> None:
    branches = """%small (x: f32[10]) -> f32[10] {
  %x = f32[10]{0} parameter(0)
  ROOT %p = f32[10]{0} negate(%x)
}

%large (z: f32[1000]) -> f32[10] {
  %z = f32[1000]{0} parameter(0)
  ROOT %q = f32[10]{0} slice(%z), slice={[0:10]}
}

%largest (v: f32[1000]) -> f32[10] {
  %v = f32[1000]{0} parameter(0)
  %h = f32[1000]{0} negate(%v)
  ROOT %g = f32[10]{0} slice(%h), slice={[0:10]}
}
"""
    names, operands = ("%small", "%large", "%largest"), ("%x", "%z", "%z")
    entry = f"""
  %i = s32[] parameter(0)
  %x = f32[10]{{0}} parameter(1)
  %z = f32[1000]{{0}} parameter(2)
  ROOT %c = f32[10]{{0}} conditional(%i, {", ".join(operands[k] for k in order)}), \
branch_computations={{{", ".join(names[k] for k in order)}}}
"""
    cost = cost_of(module(entry, branches))
    assert (cost.traffic_bytes, cost.traffic_at_most_bytes) == (80, 8000 + 80)
    assert cost.floor_seconds == pytest.approx(80e-6)


def test_collective_is_bound_by_the_link() -> None:
    entry = """
  %x = f32[100]{0} parameter(0)
  ROOT %g = f32[400]{0} all-gather(%x), channel_id=1, \
replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
"""
    row = kernel(cost_of(module(entry)), "g")
    assert (row.read_bytes, row.written_bytes) == (400, 1600)
    # Three quarters of the result come over a link of 100,000 bytes per second.
    assert row.link_seconds == pytest.approx(1200 / 1e5)
    assert row.bound == "link"
    # Each device sends three quarters of its operand, if the network adds them.
    reduce = (
        "  %x = f32[100]{0} parameter(0)\n  ROOT %r = f32[100]{0} all-reduce(%x), channel_id=1, "
    )
    groups = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add"
    row = kernel(cost_of(module(reduce + groups, ADD)), "r")
    assert row.link_seconds == pytest.approx(300 / 1e5)


def test_reduction_reads_all_and_a_multi_output_fusion_reads_once() -> None:
    body = """%body (x: f32[8,100]) -> (f32[8], f32[8,100]) {
  %x = f32[8,100]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %r = f32[8]{0} reduce(%x, %zero), dimensions={1}, to_apply=%add
  %n = f32[8,100]{1,0} negate(%x)
  ROOT %t = (f32[8]{0}, f32[8,100]{1,0}) tuple(%r, %n)
}
"""
    entry = """
  %a = f32[8,100]{1,0} parameter(0)
  ROOT %f = (f32[8]{0}, f32[8,100]{1,0}) fusion(%a), kind=kInput, calls=%body
"""
    row = kernel(cost_of(module(entry, ADD, body)), "f")
    assert (row.read_bytes, row.written_bytes) == (3200, 32 + 3200)


def test_no_cost_without_a_complete_module_and_no_floor_without_speeds() -> None:
    plan = plan_of_text(module(TWO_KERNELS))
    cost = step_cost(plan)
    assert cost is not None
    assert (cost.traffic_bytes, cost.floor_seconds, cost.kernels[0].bound) == (1600, None, None)
    assert [kernel.cached_bytes for kernel in cost.kernels] == [0, 0]
    assert cost.bound_seconds() == {}
    assert cost.estimated_share == 0
    assert step_cost(type(plan)(())) is None


def test_estimates_are_xlas_by_model() -> None:
    config = (
        '{"reification_cost":[{"exec_time_us":2.5,"name":""},{"exec_time_us":1.5,"name":"sol"}]}'
    )
    body = """%body (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%x)
}
"""
    entry = f"""
  %a = f32[4]{{0}} parameter(0)
  %f = f32[4]{{0}} fusion(%a), kind=kLoop, calls=%body, backend_config={config}
  ROOT %c = f32[12]{{0}} concatenate(%f, %f, %f), dimensions={{0}}
"""
    cost = cost_of(module(entry, body))
    assert kernel(cost, "f").estimates == {
        "default": pytest.approx(2.5e-6),
        "sol": pytest.approx(1.5e-6),
    }
    assert kernel(cost, "c").estimate_seconds is None
    # 32 bytes of the fusion; 16 that are read once, and 48.
    assert cost.estimated_share == pytest.approx(32 / (32 + 64))
    assert step_cost(plan_of_text(module("  ROOT %p = f32[] parameter(0)"))).estimated_share == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("needed", [1, 4, 32])
def test_a_slice_of_retyped_data_reads_the_bytes_of_the_slice(needed: int) -> None:
    body = f"""%body (x: f32[8,4]) -> s8[{needed},4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %b = s8[32,4]{{1,0}} bitcast-convert(%x)
  ROOT %s = s8[{needed},4]{{1,0}} slice(%b), slice={{[0:{needed}], [0:4]}}
}}
"""
    entry = f"""
  %a = f32[8,4]{{1,0}} parameter(0)
  ROOT %f = s8[{needed},4]{{1,0}} fusion(%a), kind=kLoop, calls=%body
"""
    assert kernel(cost_of(module(entry, body)), "f").read_bytes == needed * 4


def test_an_update_of_which_a_part_is_needed_reads_that_part() -> None:
    """The update replaces the first row; of eight rows that are needed, seven are old ones."""
    body = """%body (x: f32[1000,8], u: f32[1,8], i: s32[]) -> f32[8,8] {
  %x = f32[1000,8]{1,0} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %d = f32[1000,8]{1,0} dynamic-update-slice(%x, %u, %i, %i)
  ROOT %s = f32[8,8]{1,0} slice(%d), slice={[0:8], [0:8]}
}
"""
    entry = """
  %a = f32[1000,8]{1,0} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %f = f32[8,8]{1,0} fusion(%a, %u, %i), kind=kLoop, calls=%body
"""
    assert kernel(cost_of(module(entry, body)), "f").read_bytes == 7 * 32 + 32 + 4


def test_one_element_of_an_updated_row_reads_nothing_of_the_rest() -> None:
    body = """%body (x: f32[1000,8], u: f32[2,8], i: s32[]) -> f32[1,8] {
  %x = f32[1000,8]{1,0} parameter(0)
  %u = f32[2,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %d = f32[1000,8]{1,0} dynamic-update-slice(%x, %u, %i, %i)
  ROOT %s = f32[1,8]{1,0} slice(%d), slice={[0:1], [0:8]}
}
"""
    entry = """
  %a = f32[1000,8]{1,0} parameter(0)
  %u = f32[2,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %f = f32[1,8]{1,0} fusion(%a, %u, %i), kind=kLoop, calls=%body
"""
    assert kernel(cost_of(module(entry, body)), "f").read_bytes == 32 + 4


def test_half_of_a_reduction_reads_half_of_its_operand() -> None:
    body = """%body (x: f32[8,100]) -> f32[4] {
  %x = f32[8,100]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %r = f32[8]{0} reduce(%x, %zero), dimensions={1}, to_apply=%add
  ROOT %s = f32[4]{0} slice(%r), slice={[0:4]}
}
"""
    entry = """
  %a = f32[8,100]{1,0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%a), kind=kInput, calls=%body
"""
    assert kernel(cost_of(module(entry, ADD, body)), "f").read_bytes == 4 * 100 * 4


def test_a_scatter_of_several_arrays_has_as_many_updates() -> None:
    combine = """%combine (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}
"""
    entry = """
  %one = f32[100,8]{1,0} parameter(0)
  %two = bf16[100,8]{1,0} parameter(1)
  %rows = s32[2,1]{1,0} parameter(2)
  %u = f32[2,8]{1,0} parameter(3)
  %v = bf16[2,8]{1,0} parameter(4)
  ROOT %s = (f32[100,8]{1,0}, bf16[100,8]{1,0}) scatter(%one, %two, %rows, %u, %v), \
to_apply=%combine
"""
    memory = {"one": 0, "two": 1, "rows": 2, "u": 3, "v": 4, "s{0}": 0, "s{1}": 1}
    row = kernel(cost_of(module(entry, combine), memory), "s")
    # In place and without the old values: the indices and the updates.
    assert (row.read_bytes, row.written_bytes) == (8 + 64 + 32, 64 + 32)
    # In other memory, both arrays are read as well, and written.
    row = kernel(cost_of(module(entry, combine), memory | {"s{0}": 5, "s{1}": 6}), "s")
    assert (row.read_bytes, row.written_bytes) == (8 + 64 + 32 + 4800, 4800)


def test_a_fused_update_may_be_one_output_of_several_and_behind_names() -> None:
    body = """%body (n: f32[8], x: f32[1000,8], u: f32[1,8], i: s32[]) -> (f32[8], f32[1000,8]) {
  %n = f32[8]{0} parameter(0)
  %x = f32[1000,8]{1,0} parameter(1)
  %u = f32[1,8]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %m = f32[8]{0} negate(%n)
  %view = f32[8000]{0} bitcast(%x)
  %again = f32[1000,8]{1,0} copy(%view)
  %d = f32[1000,8]{1,0} dynamic-update-slice(%again, %u, %i, %i)
  %e = f32[1000,8]{1,0} reshape(%d)
  ROOT %t = (f32[8]{0}, f32[1000,8]{1,0}) tuple(%m, %e)
}
"""
    entry = """
  %n = f32[8]{0} parameter(0)
  %cache = f32[1000,8]{1,0} parameter(1)
  %new = f32[1,8]{1,0} parameter(2)
  %i = s32[] parameter(3)
  ROOT %f = (f32[8]{0}, f32[1000,8]{1,0}) fusion(%n, %cache, %new, %i), kind=kLoop, calls=%body
"""
    memory = {"n": 0, "cache": 1, "new": 2, "f{0}": 4, "f{1}": 1}
    row = kernel(cost_of(module(entry, body), memory), "f")
    assert (row.read_bytes, row.written_bytes) == (32 + 32 + 4, 32 + 32)


def test_one_memory_that_is_read_under_two_names_counts_once() -> None:
    entry = """
  %a = f32[100]{0} parameter(0)
  %b = f32[100]{0} bitcast(%a)
  ROOT %s = f32[100]{0} add(%a, %b)
"""
    assert kernel(cost_of(module(entry), {"a": 0, "s": 1}), "s").read_bytes == 400


def test_a_copy_start_writes_its_first_result_alone() -> None:
    entry = """
  %a = f32[100]{0} parameter(0)
  %c = (f32[100]{0}, f32[100]{0}, u32[]) copy-start(%a)
  ROOT %d = f32[100]{0} copy-done(%c)
"""
    row = kernel(cost_of(module(entry)), "c")
    assert (row.read_bytes, row.written_bytes, row.asynchronous) == (400, 400, True)


@pytest.mark.parametrize("library", ["__cublas$gemm", "__cudnn$f", "__cusolver$f", "__cub$f"])
def test_scratch_of_a_library_is_no_traffic(library: str) -> None:
    entry = f"""
  %a = f32[100]{{0}} parameter(0)
  ROOT %c = (f32[100]{{0}}, s8[4096]{{0}}) custom-call(%a), custom_call_target="{library}"
"""
    row = kernel(cost_of(module(entry), {"a": 0, "c{0}": 0}), "c")
    # A library states what it writes, also where that is its operand.
    assert (row.read_bytes, row.written_bytes, row.unknown_bytes) == (400, 400, 0)
    entry = f"""
  %a = f32[100]{{0}} parameter(0)
  ROOT %c = f32[100]{{0}} custom-call(%a), custom_call_target="{library}"
"""
    assert kernel(cost_of(module(entry)), "c").written_bytes == 400


def dot(shapes: str, attributes: str = "") -> str:
    first, second, result = shapes.split()
    return f"""
  %a = {first}{{1,0}} parameter(0)
  %b = {second}{{1,0}} parameter(1)
  ROOT %d = {result}{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\
{attributes}
"""


@pytest.mark.parametrize(
    ("shapes", "algorithm", "flops"),
    [
        # A multiply-add of complex numbers is four of real ones.
        ("c64[2,16] c64[16,3] c64[2,3]", "", {"c64": 8 * 2 * 3 * 16}),
        ("f64[2,16] f64[16,3] f64[2,3]", "", {"f64": 2 * 2 * 3 * 16}),
        ("f32[2,16] f32[16,3] f32[2,3]", "dot_f32_f32_f32", {"vector": 2 * 2 * 3 * 16}),
        ("f32[2,16] f32[16,3] f32[2,3]", "dot_tf32_tf32_f32", {"tf32": 2 * 2 * 3 * 16}),
        ("f32[2,16] f32[16,3] f32[2,3]", "dot_f16_f16_f32", {"f16": 2 * 2 * 3 * 16}),
        ("f64[2,16] f64[16,3] f64[2,3]", "dot_f64_f64_f64", {"f64": 2 * 2 * 3 * 16}),
        ("f8e5m2[2,16] f8e5m2[16,3] f32[2,3]", "dot_any_f8_any_f8_f32", {"f8e5m2": 192}),
    ],
)
def test_operations_of_a_product_by_type(
    shapes: str, algorithm: str, flops: dict[str, int]
) -> None:
    attributes = f", algorithm={algorithm}" if algorithm else ""
    assert kernel(cost_of(module(dot(shapes, attributes))), "d").flops == flops


def test_a_product_that_became_a_reduction_runs_outside_the_tensor_cores() -> None:
    name = 'metadata={op_name="jit(f)/dot_general"}'
    entry = f"""
  %a = f32[8,100]{{1,0}} parameter(0)
  %m = f32[8,100]{{1,0}} multiply(%a, %a), {name}
  %zero = f32[] constant(0)
  ROOT %r = f32[8]{{0}} reduce(%m, %zero), dimensions={{1}}, to_apply=%add, {name}
"""
    row = kernel(cost_of(module(entry, ADD)), "r")
    assert row.flops == {"vector": 2 * 8 * 100}
    assert row.compute_seconds == pytest.approx(1600e-6)


@pytest.mark.parametrize(
    ("target", "mask", "flops"),
    [
        # Scores and their product with the values, of 4 heads, 8 rows, 16 columns and 32 elements.
        ("__cudnn$fmhaSoftmax", "NO_MASK", 2 * 2 * 4 * 8 * 16 * 32),
        ("__cudnn$fmhaSoftmax", "CAUSAL", 2 * 4 * 8 * 16 * 32),
        # Both again, and the gradients of query, key and value.
        ("__cudnn$fmhaSoftmaxBackward", "NO_MASK", 2 * 5 * 4 * 8 * 16 * 32),
    ],
)
def test_attention_has_two_products_forward_and_five_backward(
    target: str, mask: str, flops: int
) -> None:
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":'
        f'["1","4","8","16"]}},"mask_type":"{mask}"}}}}'
    )
    entry = f"""
  %q = bf16[1,8,4,32]{{3,2,1,0}} parameter(0)
  %k = bf16[1,16,4,32]{{3,2,1,0}} parameter(1)
  ROOT %c = (bf16[1,8,4,32]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%q, %k), \
custom_call_target="{target}", backend_config={config}
"""
    assert kernel(cost_of(module(entry)), "c").flops == {"bf16": flops}
    entry = entry.replace(f", backend_config={config}", "")
    assert kernel(cost_of(module(entry)), "c").flops is None


@pytest.mark.parametrize(
    ("labels", "shapes"),
    [
        ("b01f_01io->b01f", ("[2,10,10,4]{3,2,1,0}", "[3,3,4,6]{3,2,1,0}", "[2,8,8,6]{3,2,1,0}")),
        ("bf01_oi01->bf01", ("[2,4,10,10]{3,2,1,0}", "[6,4,3,3]{3,2,1,0}", "[2,6,8,8]{3,2,1,0}")),
    ],
)
@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("Forward", "image kernel", "output"),
        ("BackwardInput", "output kernel", "image"),
        ("BackwardFilter", "image output", "kernel"),
    ],
)
def test_gradients_of_a_convolution_have_its_operations(
    target: str, operands: str, result: str, labels: str, shapes: tuple[str, str, str]
) -> None:
    named = dict(zip(("image", "kernel", "output"), shapes, strict=True))
    first, second = (f"f32{named[name]}" for name in operands.split())
    entry = f"""
  %x = {first} parameter(0)
  %y = {second} parameter(1)
  ROOT %c = (f32{named[result]}, u8[0]{{0}}) custom-call(%x, %y), window={{size=3x3}}, \
dim_labels={labels}, custom_call_target="__cudnn$conv{target}"
"""
    assert kernel(cost_of(module(entry)), "c").flops == {"f32": 2 * (2 * 8 * 8 * 6) * (3 * 3 * 4)}


@pytest.mark.parametrize(
    ("models", "estimate"),
    [
        ({"": 1.0, "sol": 2.0}, 2.0),
        ({"": 1.0, "indexing-cost-model": 3.0}, 3.0),
        ({"": 1.0, "indexing-cost-model": 3.0, "sol": 2.0}, 3.0),
        ({"": 1.0, "experimental-gemm-cost-model": 4.0, "indexing-cost-model": 3.0}, 1.0),
        ({"experimental-gemm-cost-model": 4.0, "indexing-cost-model": 3.0}, 3.0),
        ({"": 1.0}, 1.0),
        ({"other": 1.0}, None),
    ],
)
def test_the_estimate_is_that_of_the_model_for_the_kind_of_kernel(
    models: dict[str, float], estimate: float | None
) -> None:
    """docs/lab/time.md has the measured errors of XLA's models by kind of kernel."""
    costs = ",".join(
        f'{{"exec_time_us":{seconds * 1e6},"name":"{name}"}}' for name, seconds in models.items()
    )
    entry = f"""
  %a = f32[4]{{0}} parameter(0)
  ROOT %c = f32[4]{{0}} copy(%a), backend_config={{"reification_cost":[{costs}]}}
"""
    assert kernel(cost_of(module(entry)), "c").estimate_seconds == (
        None if estimate is None else pytest.approx(estimate)
    )


def test_a_wrapped_kernel_runs_beside_the_others() -> None:
    wrapped = """%wrapped (y: f32[100]) -> f32[100] {
  %y = f32[100]{0} parameter(0)
  ROOT %inner = f32[100]{0} negate(%y), metadata={op_name="jit(f)/neg"}
}
"""
    entry = """
  %a = f32[100]{0} parameter(0)
  %s = ((f32[100]{0}), f32[100]{0}) async-start(%a), calls=%wrapped
  %n = f32[100]{0} negate(%a)
  %d = f32[100]{0} async-done(%s)
  ROOT %t = f32[100]{0} call(%d), to_apply=%called
"""
    called = """%called (z: f32[100]) -> f32[100] {
  %z = f32[100]{0} parameter(0)
  ROOT %e = f32[100]{0} exponential(%z)
}
"""
    cost = cost_of(module(entry, wrapped, called))
    assert [(row.name, row.asynchronous) for row in cost.kernels] == [
        ("s", True),
        ("n", False),
        ("e", False),
    ]
    row = kernel(cost, "s")
    assert (row.kind, row.op_name, row.read_bytes) == ("negate", "jit(f)/neg", 400)
    # Only those that run one after another add up.
    assert cost.traffic_bytes == 2400
    assert cost.floor_seconds == pytest.approx(1600e-6)


def test_a_slice_is_read_from_the_cache_if_all_of_the_array_is_there() -> None:
    """Which part of an array was touched before is unknown."""
    entry = """
  %a = f32[100]{0} parameter(0)
  %b = f32[100]{0} negate(%a)
  %s = f32[10]{0} slice(%b), slice={[0:10]}
  ROOT %r = f32[10]{0} slice(%b), slice={[50:60]}
"""
    memory = {"a": 0, "b": 1, "s": 2, "r": 3}
    for l2_bytes, cached in ((10**6, 40), (400, 40), (300, 40), (0, 0)):
        cost = cost_of(module(entry), memory, l2_bytes)
        assert kernel(cost, "s").cached_bytes == cached, l2_bytes
    # After another kernel has pushed a part of it out.
    pushed = entry.replace("  %s =", "  %p = f32[10]{0} negate(%x)\n  %s =").replace(
        "  %b =", "  %x = f32[10]{0} parameter(1)\n  %b ="
    )
    memory |= {"x": 4, "p": 5}
    assert kernel(cost_of(module(pushed), memory, 480), "s").cached_bytes == 40
    assert kernel(cost_of(module(pushed), memory, 479), "s").cached_bytes == 0


def test_bounds_add_up_to_the_floor() -> None:
    first, second, product = dot("bf16[4,16] bf16[16,8] f32[4,8]").strip("\n").splitlines()
    entry = "\n".join(
        (first, second, product.replace("ROOT ", ""), "  ROOT %n = f32[4,8]{1,0} negate(%d)")
    )
    # 512 bytes and 1024 operations of the product; 256 bytes of the sum.
    assert cost_of(module(entry)).bound_seconds() == {
        "compute": pytest.approx(1024e-6),
        "memory": pytest.approx(256e-6),
    }


def test_a_loop_runs_its_first_trip_without_a_cache() -> None:
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    cost = cost_of(module(loop_entry(known), LOOP), None, 10**6)
    row = kernel(cost, "y")
    assert (row.launches, row.read_bytes) == (7, 2800)
    for trips, launches in (("2", 2), ("1", 1), ("0", None)):
        once = cost_of(module(loop_entry(known.replace('"7"', f'"{trips}"')), LOOP))
        assert [kernel.launches for kernel in once.kernels] == ([launches] if launches else [])


def test_a_product_in_a_loop_counts_in_every_trip() -> None:
    body = LOOP.replace(
        "%y = f32[100]{0} negate(%x)",
        "%y = f32[100]{0} dot(%x, %x), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={}, "
        'backend_config={"reification_cost":[{"exec_time_us":2,"name":""}]}',
    )
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    row = kernel(cost_of(module(loop_entry(known), body)), "y")
    assert row.flops == {"f32": 7 * 2 * 100}
    assert row.estimates == {"default": pytest.approx(14e-6)}


def test_operations_without_dimensions_are_unknown() -> None:
    entry = """
  %a = bf16[4,16]{1,0} parameter(0)
  %b = bf16[2,16,8]{2,1,0} parameter(1)
  %g = s32[2]{0} parameter(2)
  ROOT %d = bf16[4,8]{1,0} ragged-dot(%a, %b, %g)
"""
    cost = cost_of(module(entry))
    assert kernel(cost, "d").flops is None
    assert kernel(cost, "d").compute_seconds == 0
    assert cost.floor_seconds is not None


@pytest.mark.parametrize("opcode", ["gather", "dynamic-slice"])
def test_an_operand_that_a_body_does_not_read_is_no_traffic(opcode: str) -> None:
    """And one whose size is not known counts as nothing."""
    read = {
        "gather": "gather(%x, %i), offset_dims={1}, slice_sizes={1,8}",
        "dynamic-slice": "dynamic-slice(%x, %i, %i), dynamic_slice_sizes={1,8}",
    }[opcode]
    body = f"""%body (x: f32[1000,8], i: s32[], unused: f32[50], d: f32[<=8]) -> f32[1,8] {{
  %x = f32[1000,8]{{1,0}} parameter(0)
  %i = s32[] parameter(1)
  %unused = f32[50]{{0}} parameter(2)
  %d = f32[<=8]{{0}} parameter(3)
  %n = f32[<=8]{{0}} negate(%d)
  ROOT %r = f32[1,8]{{1,0}} {read}
}}
"""
    entry = """
  %a = f32[1000,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %u = f32[50]{0} parameter(2)
  %d = f32[<=8]{0} parameter(3)
  ROOT %f = f32[1,8]{1,0} fusion(%a, %i, %u, %d), kind=kLoop, calls=%body
"""
    row = kernel(cost_of(module(entry, body)), "f")
    assert (row.read_bytes, row.written_bytes) == (32 + 4, 32)


def test_arrays_of_unknown_size_are_no_traffic() -> None:
    entry = """
  %d = f32[<=8]{0} parameter(0)
  %n = f32[<=8]{0} negate(%d)
  ROOT %c = (f32[<=8]{0}, f32[4]{0}) custom-call(%n), custom_call_target="mine"
"""
    cost = cost_of(module(entry))
    assert (kernel(cost, "n").read_bytes, kernel(cost, "n").written_bytes) == (0, 0)
    assert (kernel(cost, "c").read_bytes, kernel(cost, "c").written_bytes) == (0, 16)


def test_a_collective_without_a_link_is_bound_by_memory() -> None:
    entry = """
  %x = f32[100]{0} parameter(0)
  ROOT %g = f32[400]{0} all-gather(%x), channel_id=1, \
replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
"""
    speeds = Device(
        name="slow",
        row=None,
        cores=132,
        bandwidth=10**6,
        l2_bytes=0,
        vector_flops=1e6,
        peak_flops={},
        link_bandwidth=None,
    )
    cost = step_cost(plan_of_text(module(entry)), speeds)
    assert cost is not None
    row = kernel(cost, "g")
    assert (row.link_seconds, row.bound, row.floor_seconds) == (0, "memory", pytest.approx(2e-3))


KERNEL_BODY = """%body (x: f32[8], y: f32[8]) -> pred[8] {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %two = s32[] constant(2)
  ROOT %c = pred[8]{0} compare(%x, %y), direction=LT
}
"""
KERNEL_ENTRY = """
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  ROOT %f = pred[8]{0} fusion(%a, %b), kind=kLoop, calls=%body, backend_config={"tiles":"8"}
"""


def fingerprint_of(entry: str, *computations: str) -> str:
    plan = plan_of_text(module(entry, *computations))
    assert plan.module is not None
    (site,) = schedule_of(plan.module)
    assert isinstance(site, Site)
    return fingerprint(site, plan.module)


def test_a_kernel_has_one_fingerprint_whatever_its_names() -> None:
    renamed = KERNEL_ENTRY.replace("%body", "%other").replace("%f", "%g").replace("%a", "%k")
    body = KERNEL_BODY.replace("%body", "%other").replace("%x", "%v")
    assert fingerprint_of(renamed, body) == fingerprint_of(KERNEL_ENTRY, KERNEL_BODY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("direction=LT", "direction=GT"),
        ("compare(%x, %y)", "compare(%y, %x)"),
        ("constant(2)", "constant(3)"),
        ("kind=kLoop", "kind=kInput"),
        ('"tiles":"8"', '"tiles":"4"'),
        ("%a = f32[8]{0}", "%a = f32[8]{0:S(5)}"),
        ("f32[8]{0} parameter(0)", "bf16[8]{0} parameter(0)"),
    ],
)
def test_a_kernel_that_computes_something_else_has_another_fingerprint(old: str, new: str) -> None:
    entry, body = (text.replace(old, new) for text in (KERNEL_ENTRY, KERNEL_BODY))
    assert fingerprint_of(entry, body) != fingerprint_of(KERNEL_ENTRY, KERNEL_BODY)


def test_a_kernel_whose_body_is_missing_has_a_fingerprint() -> None:
    assert fingerprint_of(KERNEL_ENTRY) != fingerprint_of(KERNEL_ENTRY, KERNEL_BODY)
