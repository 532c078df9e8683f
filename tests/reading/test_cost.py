"""What kernels must read, write and compute, in closed form for small programs."""

import pytest

from tests.reading.small_hlo import plan_of_text
from xlapipe.cost import KernelCost, StepCost, step_cost
from xlapipe.targets.speeds import Speeds

# One byte takes a microsecond, and so does one operation.
SLOW = Speeds(
    bandwidth=10**6,
    l2_bytes=0,
    vector_flops=1e6,
    peak_flops={"bf16": 1e6, "tf32": 5e5, "f8": 2e6},
    link_bandwidth=10**5,
)


def cost_of(text: str, memory: dict[str, int] | None = None, l2_bytes: int = 0) -> StepCost:
    speeds = Speeds(
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


def test_loop_of_unknown_trip_count_has_no_most() -> None:
    cost = cost_of(module(loop_entry(""), LOOP))
    assert kernel(cost, "y").launches == 1
    assert (cost.traffic_bytes, cost.traffic_at_most_bytes) == (800 + 2 * 9, None)


def test_conditional_is_a_range() -> None:
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
    entry = """
  %i = s32[] parameter(0)
  %x = f32[10]{0} parameter(1)
  %z = f32[1000]{0} parameter(2)
  ROOT %c = f32[10]{0} conditional(%i, %x, %z, %z), \
branch_computations={%small, %large, %largest}
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
  ROOT %c = f32[4]{{0}} copy(%f)
"""
    cost = cost_of(module(entry, body))
    assert kernel(cost, "f").estimates == {
        "default": pytest.approx(2.5e-6),
        "sol": pytest.approx(1.5e-6),
    }
    assert kernel(cost, "c").estimate_seconds is None
    assert cost.estimated_share == pytest.approx(0.5)
