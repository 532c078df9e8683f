"""Layouts of buffer-assignment text: one file up to jaxlib 0.9, two files from 0.10 on."""

from pathlib import Path

import pytest

from tests.shared.hlo_objects import logical_buffer
from xlapipe.dump.readers import DumpTexts, SourceText, read_text
from xlapipe.errors import DumpError, PlanMismatchError
from xlapipe.plans import AllocationKind, BufferAllocation

ONE_FILE = Path(__file__).with_name("texts").joinpath("one_file.txt").read_text(encoding="utf-8")

ASSIGNMENT, _, _REST = ONE_FILE.partition("\nTotal")
VALUES = "\nTotal" + _REST.partition("\n\nHloLiveRange")[0]


def read(text: str, values: str | None = None) -> tuple[BufferAllocation, ...]:
    values_source = None if values is None else SourceText("values", values)
    return read_text(DumpTexts(SourceText("dump", text), values_source)).allocations


def test_one_file() -> None:
    plan = read_text(DumpTexts(SourceText("dump", ONE_FILE)))
    assert plan.totals.total_allocation_bytes == plan.total_bytes_used == 352
    assert [a.kinds for a in plan.allocations] == [
        (AllocationKind.PARAMETER, AllocationKind.MAYBE_LIVE_OUT),
        (AllocationKind.MAYBE_LIVE_OUT,),
        (AllocationKind.THREAD_LOCAL,),
        (AllocationKind.CONSTANT,),
        (AllocationKind.PREALLOCATED_TEMP,),
    ]
    assert plan.allocations[3].values == (logical_buffer("c", 0, 4, "s32[]"),)
    assert [alias.parameter_number for alias in plan.aliases] == [0]
    assert plan.live_ranges is not None
    assert plan.live_ranges.live_range_peak_bytes == 344
    gemm = plan.instructions["custom-call.1"]
    assert gemm.operands == ("x.1", "x.1")
    assert gemm.backend_config == '{"a":{"beta":0},"b":1}'
    assert str(gemm.source) == "model.py:3"


def test_split() -> None:
    plan = read_text(DumpTexts(SourceText("dump", ASSIGNMENT), SourceText("values", VALUES)))
    assert plan.total_bytes_used == 352
    assert plan.live_ranges is None
    assert plan.module is not None
    assert not plan.module.complete


def test_pages_colors_and_reused_lines() -> None:
    text = ASSIGNMENT.replace(", constant", ", page 0, constant")
    text = text.replace("size 272, preallocated", "size 272, color 1, page 2, preallocated")
    text += (
        " reused by buffers of a different color:\n  value: <11 custom-call.1{1} @0> (color=0)\n"
    )
    allocations = read(text, VALUES)
    plain = read(ASSIGNMENT, VALUES)
    assert allocations[:4] == plain[:4]
    assert allocations[4].color == 1
    assert allocations[4].values == plain[4].values


def test_long_tuples_and_nested_indices() -> None:
    parts = ["f32[4]{0}"] * 7
    shape = ", ".join([*parts[:5], "/*index=5*/f32[4]{0}", "(f32[4]{0}, s8[2,3]{1,0:T(8,128)})"])
    text = (
        "BufferAssignment:\n"
        f"allocation 0: size 1024, parameter 3, shape |({shape})| at ShapeIndex {{6,1}}:\n"
        f" value: <1 p{{6,1}} @0> (size=1024,offset=0): s8[2,3]{{1,0:T(8,128)S(1)}}\n"
        "allocation 1: size 512, parameter 3, shape |()| at ShapeIndex {}:\n"
        f" value: <2 p{{}} @0> (size=512,offset=0): ({shape})\n"
        "\nTotal bytes used: 1536 (1.5KiB)\n"
    )
    allocations = read(text)
    assert allocations[0].parameter_shape_index == (6, 1)
    assert allocations[0].values[0].name == "p{6,1}"
    assert allocations[0].values[0].instruction == "p"
    assert allocations[1].values[0].shape.text == f"({shape})".replace("/*index=5*/", "")


def test_windows_line_ends_and_a_byte_order_mark_do_not_matter() -> None:
    assert read(ONE_FILE.replace("\n", "\r\n")) == read(ONE_FILE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("allocation 1: size 8", "allocation 2: size 8", "dump:5: expected allocation 1"),
        ("allocation 1: size 8", "allocation 1: size 9", "add up to XLA's total of 352"),
        ("allocation 1: size 8", "allocation 1: size -8", "dump:5: expected an allocation line"),
        ("allocation 1: size 8", f"allocation 1: size {2**63}", "dump:5: expected a size below"),
        ("(size=16,offset=256)", "(size=16,offset=257)", "within the 272 bytes of allocation 4"),
        ("(size=200,offset=0)", "(size=200,offset=60)", "shared by values alive at the same time"),
        (", parameter 0, shape", ", parameter 1, shape", "expected the instruction parameter(1)"),
        (", thread-local", ", thread-local, thread-local", "each flag of an allocation"),
        (", thread-local", ", device-local", "dump:7: expected an allocation line"),
        ("Total bytes used: 352 (352B)\n", "", "found neither; fix: copy the whole file"),
        ("352 (352B)", "353 (353B)", "total of 353 bytes, found 5 allocations with 352 bytes"),
        ("<8 custom-call.1{}", "<8 custom-call.1{0}", "dump:4: expected"),
        ("    tuple{}:3-4", "    nothing{}:3-4", "an allocation for value nothing"),
        ("BufferAssignment:", "BufferAssignments:", "dump:1: expected `BufferAssignment:`"),
        ("f32[4,4]{1,0} parameter(0), meta", "f32[4,4]{1,0} parameter(0)x meta", "attributes"),
    ],
)  # fmt: skip
def test_a_contradictory_text_is_rejected(old: str, new: str, message: str) -> None:
    assert old in ONE_FILE
    with pytest.raises(DumpError) as caught:
        read(ONE_FILE.replace(old, new, 1))
    if not message.startswith("dump:4"):
        assert message in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("HloLiveRange (max 4)", "HloLiveRange (max 5)", "expected 5 positions"),
        ("    tuple{}:3-4", "    tuple{}:4-3", "expected a live range with 0 <= start <= end <= 4"),
        ("    tuple{}:3-4", "    tuple{}:3-5", "expected a live range with 0 <= start <= end <= 4"),
        ("    0:x.1\n", "", "expected position 0"),
    ],
)
def test_live_ranges_that_cannot_be_read_cost_that_part_alone(
    old: str, new: str, message: str
) -> None:
    assert old in ONE_FILE
    plan = read_text(DumpTexts(SourceText("dump", ONE_FILE.replace(old, new, 1))))
    assert plan.live_ranges is None
    assert plan.allocations == read(ONE_FILE)
    (note,) = plan.notes
    assert note.startswith("live ranges not read: dump:")
    assert message in note


def test_a_wrong_total_in_the_values_file() -> None:
    with pytest.raises(PlanMismatchError, match="total of 351 bytes"):
        read(ASSIGNMENT, VALUES.replace("352", "351"))
    with pytest.raises(DumpError, match="values:1: expected `Total bytes used: N`, found none"):
        read(ASSIGNMENT, "Used values:\n")
    with pytest.raises(DumpError, match="from two compiles"):
        read(ONE_FILE, VALUES.replace("352", "351"))


def test_an_assignment_without_its_values_file_is_rejected() -> None:
    with pytest.raises(DumpError, match="the values file as well"):
        read(ASSIGNMENT)
