"""What the threads of a fusion do: operations, and reads of the caches."""

from math import prod

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.dump.readers.contraction import contraction_of_proto, contraction_of_text
from xlapipe.dump.readers.hlo_proto import HloInstructionProto
from xlapipe.plans.hlo import Contraction
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.element_operations import ThreadWork
from xlapipe.time.predict.followed_threads import followed
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.gpu import HOPPER

_LEAST = 2 / 32  # lines for each element: a warp reads two


def _work(*lines: str, tiled: bool = False, each: int = 1, before: str = "") -> ThreadWork:
    """The work of a fusion with such a body; of its parameters, `before` makes the second."""
    shapes = [line.split()[2] for line in lines if " parameter(" in line]
    result = next(line for line in lines if line.startswith("ROOT")).split()[3]
    names = [f"p{number}" for number in range(len(shapes))]
    given = [
        before if before and number == 1 else f"p{number} = {shape} parameter({number})"
        for number, shape in enumerate(shapes)
    ]
    text = "\n".join(
        [
            "HloModule small, is_scheduled=true",
            "add {",
            "  a = f32[] parameter(0)",
            "  b = f32[] parameter(1)",
            "  ROOT c = f32[] add(a, b)",
            "}",
            "fused {",
            *(f"  {line}" for line in lines),
            "}",
            "ENTRY main {",
            *(f"  {line}" for line in given),
            f"  ROOT f = {result} fusion({', '.join(names)}), kind=kLoop, calls=fused",
            "}",
        ]
    )
    module = plan_of_text(text).module
    assert module is not None
    main = module.entry_computation
    assert main is not None
    cost = KernelCost(name="f", kind="kLoop", op_name=None, source=None)
    fusion = Fusion(main.by_name["f"], main, module, cost, 0, 0, HOPPER)
    return followed(
        fusion,
        tiled=tiled,
        elements_of_a_thread=each,
    )


def test_neighbours_share_lines() -> None:
    work = _work("p = f32[64,32768]{1,0} parameter(0)", "ROOT r = f32[64,32768]{1,0} negate(p)")
    assert work.lines == 64 * 32768 * _LEAST
    assert work.operations == 64 * 32768
    assert work.sector_bytes == work.far_sector_bytes == 0


@pytest.mark.parametrize(("stride", "lines"), [(2, 2), (4, 4), (32, 32), (64, 32)])
def test_threads_that_read_every_second_element_share_less(stride: int, lines: int) -> None:
    size = 32768 // stride
    work = _work(
        "p = f32[64,32768]{1,0} parameter(0)",
        f"ROOT r = f32[64,{size}]{{1,0}} slice(p), slice={{[0:64], [0:32768:{stride}]}}",
    )
    assert work.lines == 64 * size * lines / 32
    # Of each sector, the other elements are moved as well.
    assert work.sector_bytes == 64 * size * 4 * (min(stride, 8) - 1)


def test_of_a_pad_with_elements_between_others_warps_compute_all() -> None:
    work = _work(
        "p = f32[64,512]{1,0} parameter(0)",
        "n = f32[64,512]{1,0} negate(p)",
        "z = f32[] constant(0)",
        "ROOT r = f32[64,1023]{1,0} pad(n, z), padding=0_0x0_0_1",
    )
    # Where half of the threads negate, the others wait.
    assert work.operations == pytest.approx(64 * 1023 * (16 + 1), rel=0.01)


def test_a_join_computes_only_what_it_has() -> None:
    work = _work(
        "p = f32[1024,1024]{1,0} parameter(0)",
        "q = f32[1024,1024]{1,0} parameter(1)",
        "e = f32[1024,1024]{1,0} exponential(p)",
        "ROOT r = f32[2048,1024]{1,0} concatenate(e, q), dimensions={0}",
    )
    assert work.operations == pytest.approx(1024 * 1024 * (9 + 2 * 6), rel=0.1)


@pytest.mark.parametrize("shape", ["1024,4096", "64,64"], ids=["large", "small"])
def test_a_transpose_of_a_large_matrix_reads_whole_sectors(shape: str) -> None:
    back, elements = ",".join(reversed(shape.split(","))), prod(map(int, shape.split(",")))
    lines = (
        f"p = f32[{shape}]{{1,0}} parameter(0)",
        f"ROOT t = f32[{back}]{{1,0}} transpose(p), dimensions={{1,0}}",
    )
    assert _work(*lines).lines == elements
    # What is beyond one read of each, at half of its bytes; the L1 cache holds a small one.
    again = elements * (32 - 4) / 2 if elements > 64 * 64 else 0
    assert _work(*lines).sector_bytes == pytest.approx(again, rel=0.02)
    assert _work(*lines, tiled=True).lines == elements * _LEAST
    assert _work(*lines, tiled=True).sector_bytes == 0


def test_the_rest_of_a_sector_is_far_if_the_l2_cache_does_not_hold_the_array() -> None:
    shifted = (
        "p = f32[1024,32768]{1,0} parameter(0)",
        "s = f32[1022,32768]{1,0} slice(p), slice={[0:1022], [0:32768]}",
        "t = f32[1022,32768]{1,0} slice(p), slice={[2:1024], [0:32768]}",
        "ROOT r = f32[1022,32768]{1,0} add(s, t)",
    )
    # What blocks read twice, the L2 cache still has.
    assert _work(*shifted).far_sector_bytes == 0
    assert _work(*shifted).sector_bytes == pytest.approx(1024 * 32768 * 4 / 2, rel=0.05)
    elements = 1024 * 32768
    far = _work(
        "p = f32[1048576,32]{1,0} parameter(0)",
        "ROOT t = f32[32,1048576]{1,0} transpose(p), dimensions={1,0}",
    )
    assert far.far_sector_bytes == pytest.approx(elements * 28, rel=0.01)
    # Others read the rest of a sector soon: a row of the result later.
    soon = _work(
        "p = f32[1024,32768]{1,0} parameter(0)",
        "ROOT t = f32[32768,1024]{1,0} transpose(p), dimensions={1,0}",
    )
    assert soon.far_sector_bytes == 0
    again = (elements * 32 - elements * 4) / 2
    assert soon.sector_bytes == pytest.approx(again, rel=0.01)


_GATHERED = (
    "p = f32[1000000,4]{1,0} parameter(0)",
    "i = s32[4096,1]{1,0} parameter(1)",
    "ROOT r = f32[4096,4]{1,0} gather(p, i), offset_dims={1}, collapsed_slice_dims={0}, "
    "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
)
_ROW_BYTES = 4096 * 16


@pytest.mark.parametrize(
    ("before", "lines"),
    [("", 8), ("p1 = s32[4096,1]{1,0} iota(), iota_dimension=0", 4)],
    ids=["read", "counted"],
)
def test_a_short_row_at_an_unknown_index_is_in_a_line_of_its_own(before: str, lines: int) -> None:
    work = _work(*_GATHERED, before=before)
    # Of a warp, eight rows, and two lines of indices.
    assert work.lines == pytest.approx(4096 * 4 / 32 * (lines + 2 - 2 * (lines == 4)), rel=0.15)
    assert work.sector_bytes == pytest.approx(_ROW_BYTES if lines == 8 else 0, rel=0.05)


def test_a_table_that_the_l1_cache_holds_has_no_sectors() -> None:
    work = _work(
        "p = f32[16384]{0} parameter(0)",
        "i = s32[4194304,1]{1,0} parameter(1)",
        "ROOT r = f32[4194304]{0} gather(p, i), offset_dims={}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
    )
    assert work.sector_bytes == 0
    assert work.lines == pytest.approx(4194304 * (1 + _LEAST), rel=0.1)


@pytest.mark.parametrize("name", ["gte.17", "param_1.2309"])
def test_names_change_no_prediction(name: str) -> None:
    # A table of 32 lines: how many of them a warp reads depends on the unknown indices.
    lines = (
        "p = f32[1024]{0} parameter(0)",
        f"{name} = s32[4096,1]{{1,0}} parameter(1)",
        f"ROOT r = f32[4096]{{0}} gather(p, {name}), offset_dims={{}}, collapsed_slice_dims={{0}}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
    )
    assert _work(*lines) == _work(*(line.replace(name, "other") for line in lines))


def test_sectors_of_what_the_l2_cache_does_not_hold_are_far() -> None:
    work = _work(
        "p = f32[67108864]{0} parameter(0)",
        "i = s32[1048576,1]{1,0} parameter(1)",
        "ROOT r = f32[1048576]{0} gather(p, i), offset_dims={}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
    )
    assert work.far_sector_bytes == pytest.approx(1048576 * 28, rel=0.01)
    assert work.sector_bytes == 0


def test_indices_along_an_axis_stay_in_their_row() -> None:
    lines = (
        "p = f32[4096,4096]{1,0} parameter(0)",
        "i = s32[4096,256]{1,0} parameter(1)",
        "n = s32[4096,256,1]{2,1,0} iota(), iota_dimension=0",
        "b = s32[4096,256,1]{2,1,0} bitcast(i)",
        "j = s32[4096,256,2]{2,1,0} concatenate(n, b), dimensions={2}",
        "f = s32[1048576,2]{1,0} bitcast(j)",
        "ROOT g = f32[1048576,1,1]{2,1,0} gather(p, f), offset_dims={1,2}, "
        "collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}",
    )
    anywhere = tuple(line.replace("iota(), iota_dimension=0", "bitcast(i)") for line in lines)
    # A row has 128 lines, of which 32 threads find some together; anywhere, none do.
    assert _work(*lines).lines < 0.95 * _work(*anywhere).lines


def test_short_sums_are_those_of_single_threads() -> None:
    lines = (
        "p = f32[65536,8]{1,0} parameter(0)",
        "z = f32[] constant(0)",
        "ROOT r = f32[65536]{0} reduce(p, z), dimensions={1}, to_apply=add",
    )
    assert _work(*lines, tiled=True) == _work(*lines)
    # Each of eight reads of a warp takes eight lines, and waits for the one before.
    assert _work(*lines).lines == 65536 * 8 * 8 / 32
    assert _work(*lines).longest_reads == 8


def test_reads_in_a_branch_of_a_long_sum_wait_for_each_other() -> None:
    def reads(terms: int, columns: int, *, pad: bool) -> float:
        whole, part = f"f32[{terms},{columns}]{{1,0}}", f"f32[{terms},{columns - 1}]{{1,0}}"
        padded = f"q = {whole} pad(p, z), padding=0_0x0_1"
        return _work(
            f"p = {part if pad else whole} parameter(0)",
            "z = f32[] constant(0)",
            padded if pad else f"q = {whole} negate(p)",
            f"ROOT r = f32[{columns}]{{0}} reduce(q, z), dimensions={{0}}, to_apply=add",
        ).longest_reads

    assert reads(1024, 4096, pad=False) == 1024
    assert reads(1024, 4096, pad=True) > 20 * 1024
    # A loop over few terms is unrolled, and small arrays are in the L1 cache.
    assert reads(16, 65536, pad=True) == 16
    assert reads(1024, 40, pad=True) == 1024


def test_reads_of_a_thread_follow_each_other_if_some_are_in_branches() -> None:
    def reads(*between: str) -> float:
        return _work(
            "p = f32[64,4096]{1,0} parameter(0)",
            "z = f32[] constant(0)",
            "q = f32[4096,64]{1,0} parameter(1)",
            "t = f32[64,4096]{1,0} transpose(q), dimensions={1,0}",
            *between,
            "ROOT r = f32[64,4096]{1,0} add(s, t)",
        ).reads_apart

    assert reads("s = f32[64,4096]{1,0} negate(p)") == 0
    part = "a = f32[64,4090]{1,0} slice(p), slice={[0:64], [3:4093]}"
    # A thread reads both; where there is padding, one.
    assert reads(part, "s = f32[64,4096]{1,0} pad(a, z), padding=0_0x3_3") == 2


@pytest.mark.parametrize("size", [16, 64])
def test_windows_are_read_by_each_thread(size: int) -> None:
    work = _work(
        f"p = f32[4096,{size}]{{1,0}} parameter(0)",
        "z = f32[] constant(0)",
        f"ROOT r = f32[4096,{size}]{{1,0}} reduce-window(p, z), "
        "window={size=1x16 pad=0_0x15_0}, to_apply=add",
    )
    assert work.longest_reads == 16


def test_an_update_that_is_not_the_result_is_a_branch_for_each_element() -> None:
    lines = (
        "p = f32[64,4096]{1,0} parameter(0)",
        "u = f32[1,4096]{1,0} parameter(1)",
        "i = s32[] constant(5)",
        "e = f32[64,4096]{1,0} exponential(p)",
    )
    update = "f32[64,4096]{1,0} dynamic-update-slice(e, u, i, i)"
    inside = _work(*lines, f"d = {update}", "ROOT r = f32[64,4096]{1,0} negate(d)")
    result = _work(*lines, f"ROOT d = {update}")
    # In place, threads have elements of the update alone.
    assert result.operations == 0
    assert inside.operations >= 63 * 4096 * 10


def test_float64_takes_longer() -> None:
    operations = [
        _work(f"p = {kind}[65536]{{0}} parameter(0)", f"ROOT r = {kind}[65536]{{0}} {opcode}(p)")
        for opcode in ("negate", "exponential")
        for kind in ("f32", "f64")
    ]
    simple, double, function, of_double = (work.operations / 65536 for work in operations)
    assert (simple, double, function, of_double) == (1, 2, 9, 27)


def test_threads_with_equal_indices_compute_them_once() -> None:
    lines = (
        "p = f32[4096]{0} parameter(0)",
        "e = f32[4096]{0} exponential(p)",
        "ROOT r = f32[4096,64]{1,0} broadcast(e), dimensions={0}",
    )
    assert _work(*lines, each=4).operations == _work(*lines).operations / 4


@pytest.mark.parametrize(
    "line",
    [
        "f32[0,8]{1,0} slice(p), slice={[0:0], [0:8]}",
        "f32[0]{0} concatenate(e, e), dimensions={0}",
        "f32[0]{0} negate(e)",
        "f32[] reduce(e, z), dimensions={0}, to_apply=add",
    ],
)
@pytest.mark.parametrize("tiled", [True, False])
def test_empty_arrays_are_no_error(line: str, tiled: bool) -> None:
    given = (
        "p = f32[8,8]{1,0} parameter(0)",
        "e = f32[0]{0} parameter(1)",
        "z = f32[] parameter(2)",
    )
    work = _work(*given, f"ROOT r = {line}", tiled=tiled)
    assert all(number >= 0 for number in work)


_GATHER = {
    "offset_dims": "{1,2}",
    "collapsed_slice_dims": "{1}",
    "operand_batching_dims": "{}",
    "start_index_map": "{1}",
}


@pytest.mark.parametrize(
    ("opcode", "attributes", "fields", "dims", "starts"),
    [
        ("slice", {"slice": "{[0:64], [4:100:2]}"}, "slice_dimensions", (1, 2), (0, 4)),
        ("pad", {"padding": "0_0x-1_0_3"}, "padding_config", (0, 3), (0, -1)),
        ("reduce-window", {"window": "{size=1x16 pad=0_0x15_0}"}, "window", (1, 16), (0, 15)),
        ("gather", _GATHER, "gather_dimension_numbers", (-1, 0, 2), (1,)),
        ("broadcast", {"dimensions": "{0,2}"}, "dimensions", (0, 2), ()),
        ("iota", {"iota_dimension": "1"}, "dimensions", (1,), ()),
    ],
)
def test_text_and_proto_state_the_same_dimensions(
    opcode: str,
    attributes: dict[str, str],
    fields: str,
    dims: tuple[int, ...],
    starts: tuple[int, ...],
) -> None:
    proto = HloInstructionProto(opcode=opcode)
    if fields == "slice_dimensions":
        for stride, start in zip(dims, starts, strict=True):
            proto.slice_dimensions.add(stride=stride, start=start)
    elif fields == "padding_config":
        for number, low in zip(dims, starts, strict=True):
            proto.padding_config.dimensions.add(interior_padding=number, edge_padding_low=low)
    elif fields == "window":
        for number, low in zip(dims, starts, strict=True):
            proto.window.dimensions.add(size=number, padding_low=low)
    elif fields == "gather_dimension_numbers":
        proto.gather_dimension_numbers.offset_dims.extend([1, 2])
        proto.gather_dimension_numbers.collapsed_slice_dims.append(1)
        proto.gather_dimension_numbers.start_index_map.extend(starts)
    else:
        proto.dimensions.extend(dims)
    stated = Contraction(dims, None, starts)
    assert contraction_of_text(attributes) == contraction_of_proto(proto) == stated


def test_windows_of_neighbours_read_the_same_sectors() -> None:
    height, width = 720, 1280
    work = _work(
        f"p = f32[{height},{width}]{{1,0}} parameter(0)",
        "z = f32[] constant(0)",
        f"ROOT r = f32[{height},{width}]{{1,0}} reduce-window(p, z), "
        "window={size=15x15 pad=7_7x7_7}, to_apply=add",
    )
    # A block has 128 elements of a row: it needs 15 rows of 128 + 14, of which it shares 14 with
    # the next one.
    once = height * width * 4
    needed = 15 * (128 + 14) / 128 * once
    assert work.sector_bytes == pytest.approx(0.5 * (needed - once), rel=0.25)
