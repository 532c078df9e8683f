"""Which lines of the L1 cache and sectors of the L2 cache a fusion's threads read."""

from math import prod

import pytest

from tests.reading.small_hlo import plan_of_text
from xlapipe.plans.hlo import Computation, Contraction, HloModule
from xlapipe.predict.fusion_reads import Reads, elements_of_window, reads_of
from xlapipe.readers.contraction import contraction_of_proto, contraction_of_text
from xlapipe.readers.hlo_proto import HloInstructionProto

_ELEMENTS = 64 * 32768
_LEAST = 1 / 16  # of a line, for each element


def _fused(*lines: str) -> tuple[Computation, HloModule]:
    """A fusion's body, and the module that has it."""
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
            "  ROOT p = f32[8]{0} parameter(0)",
            "}",
        ]
    )
    module = plan_of_text(text).module
    assert module is not None
    return module.computations["fused"], module


def _reads(*lines: str, tiled: bool = False, each: float = 1.0) -> Reads:
    return reads_of(*_fused(*lines), tiled=tiled, elements_of_a_thread=each)


def test_neighbours_share_lines() -> None:
    reads = _reads("p = f32[64,32768]{1,0} parameter(0)", "ROOT r = f32[64,32768]{1,0} negate(p)")
    assert reads == Reads(_ELEMENTS * _LEAST, 0.0)


@pytest.mark.parametrize(("stride", "share"), [(2, 1 / 16), (4, 1 / 8), (32, 1), (64, 1)])
def test_threads_that_read_every_second_element_share_less(stride: int, share: float) -> None:
    size = 32768 // stride
    reads = _reads(
        "p = f32[64,32768]{1,0} parameter(0)",
        f"ROOT r = f32[64,{size}]{{1,0}} slice(p), slice={{[0:64], [0:32768:{stride}]}}",
    )
    assert reads == Reads(64 * size * share, 0.0)


def test_strides_of_slices_of_slices_are_multiplied() -> None:
    reads = _reads(
        "p = f32[64,32768]{1,0} parameter(0)",
        "s = f32[64,16384]{1,0} slice(p), slice={[0:64], [1:32768:2]}",
        "n = f32[64,16384]{1,0} negate(s)",
        "ROOT r = f32[64,8192]{1,0} slice(n), slice={[0:64], [0:16384:2]}",
        each=4.0,
    )
    assert reads == Reads(64 * 8192 * 0.5, 0.0)


def test_of_a_pad_with_elements_between_others_only_those_are_read() -> None:
    reads = _reads(
        "p = f32[64,512]{1,0} parameter(0)",
        "z = f32[] constant(0)",
        "ROOT r = f32[64,1023]{1,0} pad(p, z), padding=0_0x0_0_1",
    )
    assert reads == Reads(64 * 512 * _LEAST, 0.0)


@pytest.mark.parametrize(
    ("shape", "sectors"), [("1024,32768", 1024 * 32768), ("64,64", 0)], ids=["large", "small"]
)
def test_a_transpose_of_a_large_matrix_reads_whole_sectors(shape: str, sectors: float) -> None:
    back = ",".join(reversed(shape.split(",")))
    lines = (
        f"p = f32[{shape}]{{1,0}} parameter(0)",
        f"ROOT t = f32[{back}]{{1,0}} transpose(p), dimensions={{1,0}}",
    )
    assert _reads(*lines).sectors == sectors
    assert _reads(*lines).lines == prod(map(int, shape.split(",")))
    assert _reads(*lines, tiled=True).sectors == 0


@pytest.mark.parametrize(
    ("indices", "sectors"),
    [("parameter(1)", 4096.0), ("iota(), iota_dimension=0", 0.0)],
    ids=["read", "counted"],
)
def test_a_short_row_that_is_read_at_an_index_is_one_sector(indices: str, sectors: float) -> None:
    reads = _reads(
        "p = f32[1000000,4]{1,0} parameter(0)",
        f"i = s32[4096,1]{{1,0}} {indices}",
        "ROOT r = f32[4096,4]{1,0} gather(p, i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
    )
    # The L1 cache holds a hundredth of the table.
    assert reads.sectors == pytest.approx(sectors, rel=0.02)


@pytest.mark.parametrize(("numbers", "sectors"), [(4096, 4096.0), (64, 0.0)])
def test_indices_from_a_few_numbers_follow_each_other(numbers: int, sectors: float) -> None:
    reads = _reads(
        "p = f32[1000000,4]{1,0} parameter(0)",
        f"n = s32[{numbers}]{{0}} parameter(1)",
        f"w = s32[{numbers},{4096 // numbers}]{{1,0}} broadcast(n), dimensions={{0}}",
        "i = s32[4096,1]{1,0} bitcast(w)",
        "ROOT r = f32[4096,4]{1,0} gather(p, i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
    )
    assert reads.sectors == pytest.approx(sectors, rel=0.02)


def test_a_table_that_the_l1_cache_holds_has_no_sectors() -> None:
    reads = _reads(
        "p = f32[16384]{0} parameter(0)",
        "i = s32[4194304,1]{1,0} parameter(1)",
        "ROOT r = f32[4194304]{0} gather(p, i), offset_dims={}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
    )
    assert reads.sectors == 0
    assert reads.lines == 4194304


def test_short_sums_are_those_of_single_threads() -> None:
    lines = (
        "p = f32[65536,8]{1,0} parameter(0)",
        "z = f32[] constant(0)",
        "ROOT r = f32[65536]{0} reduce(p, z), dimensions={1}, to_apply=add",
    )
    assert _reads(*lines, tiled=True) == _reads(*lines) == Reads(65536 * 8 / 4, 0.0)


@pytest.mark.parametrize(("size", "window", "elements"), [(16, 16, 8.5), (4096, 3, 3.0), (1, 1, 1)])
def test_windows_have_padding(size: int, window: int, elements: float) -> None:
    body, _ = _fused(
        f"p = f32[4,{size}]{{1,0}} parameter(0)",
        "z = f32[] constant(0)",
        f"ROOT r = f32[4,{size}]{{1,0}} reduce-window(p, z), "
        f"window={{size=1x{window} pad=0_0x{window - 1}_0}}, to_apply=add",
    )
    operand = body.by_name["p"].shape.arrays[0]
    assert elements_of_window(body.by_name["r"], operand) == pytest.approx(elements, rel=0.001)


@pytest.mark.parametrize(
    "line",
    [
        "f32[8,8]{1,0} slice(p), slice={[0:8:2]}",
        "f32[8,8]{1,0} slice(p), slice={}",
        "f32[8,8]{5,0} transpose(p), dimensions={7,0}",
        "f32[8,8]{1,0} broadcast(p), dimensions={9}",
        "f32[8]{0} reduce(p, p), dimensions={0,1,2}, to_apply=add",
        "f32[8,8]{1,0} gather(p, p), offset_dims={9}, collapsed_slice_dims={0,4}",
        "f32[8,8]{1,0} pad(p, p), padding=0_0_0",
        "f32[8,8]{1,0} reduce-window(p, p), window={size=0x99999}, to_apply=add",
        "f32[0,8]{1,0} slice(p), slice={[0:0], [0:8]}",
        "f32[4]{0} gather(e, p), offset_dims={}, collapsed_slice_dims={0}",
    ],
)
def test_damaged_dimensions_are_no_error(line: str) -> None:
    given = ("p = f32[8,8]{1,0} parameter(0)", "e = f32[0]{0} parameter(1)")
    reads = _reads(*given, f"ROOT r = {line}")
    assert reads.lines >= 0
    assert reads.sectors >= 0


_GATHER = {"offset_dims": "{1,2}", "collapsed_slice_dims": "{1}", "operand_batching_dims": "{}"}


@pytest.mark.parametrize(
    ("opcode", "attributes", "fields", "dims"),
    [
        ("slice", {"slice": "{[0:64], [0:100:2]}"}, "slice_dimensions", (1, 2)),
        ("pad", {"padding": "0_0x-1_0_3"}, "padding_config", (0, 3)),
        ("reduce-window", {"window": "{size=1x16 pad=0_0x15_0}"}, "window", (1, 16)),
        ("gather", _GATHER, "gather_dimension_numbers", (-1, 0, 2)),
        ("broadcast", {"dimensions": "{0,2}"}, "dimensions", (0, 2)),
    ],
)
def test_text_and_proto_state_the_same_dimensions(
    opcode: str, attributes: dict[str, str], fields: str, dims: tuple[int, ...]
) -> None:
    proto = HloInstructionProto(opcode=opcode)
    if fields == "slice_dimensions":
        for stride in dims:
            proto.slice_dimensions.add(stride=stride)
    elif fields == "padding_config":
        for number in dims:
            proto.padding_config.dimensions.add(interior_padding=number)
    elif fields == "window":
        for number in dims:
            proto.window.dimensions.add(size=number)
    elif fields == "gather_dimension_numbers":
        proto.gather_dimension_numbers.offset_dims.extend([1, 2])
        proto.gather_dimension_numbers.collapsed_slice_dims.append(1)
    else:
        proto.dimensions.extend(dims)
    assert contraction_of_text(attributes) == contraction_of_proto(proto) == Contraction(dims)
