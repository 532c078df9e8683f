"""What kernels must read, write and compute, in closed form for small programs."""

from dataclasses import replace

import pytest

from tests.shared.small_hlo import plan_of_text

# One byte takes a microsecond, and so does one operation.
from tests.time.cost_of_text import ADD, LOOP, SLOW, cost_of, kernel, loop_entry, module
from xlapipe.plans.kernel_code import StatedCost
from xlapipe.time.cost import step_cost


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


def test_loop_counts_its_trips_and_does_not_compute_its_condition() -> None:
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    cost = cost_of(module(loop_entry(known), LOOP))
    assert {kernel.name: kernel.launches for kernel in cost.kernels} == {"y": 7}
    assert cost.traffic_bytes == cost.traffic_at_most_bytes == 7 * 800
    without_speeds = step_cost(plan_of_text(module(loop_entry(known), LOOP)))
    assert without_speeds is not None
    (row,) = without_speeds.kernels
    assert (row.launches, row.memory_seconds, row.floor_seconds) == (7, None, None)


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
    assert step_cost(type(plan)(())) is None


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
