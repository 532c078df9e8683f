"""Replica groups: three spellings in text and four fields in the proto are read into one form."""

import pytest

from xlapipe.dump.readers.hlo_instruction import InstructionParser
from xlapipe.dump.readers.hlo_proto import HloInstructionProto
from xlapipe.dump.readers.proto_module import groups_of_proto
from xlapipe.dump.readers.replica_groups import groups_of_text, pairs_of_text
from xlapipe.dump.readers.source_text import LineReader, SourceText
from xlapipe.errors import DumpError
from xlapipe.plans.call_chains import CallChains
from xlapipe.plans.hlo import CollectiveGroups

ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))
COLUMNS = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ()),
        ("{{0,5},{1,4}}", ((0, 5), (1, 4))),
        ("{{0, 1}, {2, 3}}", ((0, 1), (2, 3))),
        ("{{0,1,2},{3}}", ((0, 1, 2), (3,))),
        ("[2,4]<=[8]", ROWS),
        ("[4,2]<=[2,4]T(1,0)", COLUMNS),
        ("[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['d'=8] {'d'}", (tuple(range(8)),)),
        ("mesh['a'=2,'b'=4] {'b'}", ROWS),
        ("mesh['a'=2,'b'=4] {'a'}", COLUMNS),
        ("mesh['a'=2,'b'=4] {'a','b'}", (tuple(range(8)),)),
        ("mesh[a=2,b=4] {b}", ROWS),
        # A part of an axis: `(pre-size)size`.
        ("mesh['d'=8] {'d':(1)2}", COLUMNS),
        ("mesh['d'=8] {'d':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['d'=8] {'d':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['d'=8] {'d':(1)2,'d':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=2,'b'=2], device_ids=([0,2,1,3]) {'b'}", ((0, 2), (1, 3))),
    ],
)
def test_each_spelling(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert groups_of_text(text) == groups


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{0,1}}",
        "{{0,1}",
        "{{a}}",
        "[2,4]<=[9]",
        "[0,4]<=[0]",
        "[2,4]<=[2,4]T(0,0)",
        "[1048577,1048577]<=[1048577,1048577]",
        "mesh['d'=8] {'e'}",
        "mesh['d'=8]",
        "mesh['d'=8] {'d':(3)2}",
        "mesh['d'=8] {'d':(1)3}",
        "mesh['d'=8] {'d','d'}",
        "mesh['d'=0] {'d'}",
        "mesh['a'=2,'b'=2], device_ids=([0,2,1]) {'b'}",
    ],
)
def test_text_of_no_groups(text: str) -> None:
    assert groups_of_text(text) is None


def test_pairs() -> None:
    assert pairs_of_text("{{0,1},{1,0}}") == ((0, 1), (1, 0))
    assert pairs_of_text("{}") == ()
    assert pairs_of_text("{{0,1,2}}") is None


def proto(**fields: object) -> HloInstructionProto:
    return HloInstructionProto(**fields)  # type: ignore[arg-type]


LISTED = [{"replica_ids": ids} for ids in COLUMNS]
IOTA = {
    "num_replica_groups": 4,
    "num_devices_per_group": 2,
    "iota_reshape_dims": [2, 4],
    "iota_transpose_perm": [1, 0],
}


@pytest.mark.parametrize(
    "instruction",
    [
        proto(replica_groups=LISTED),
        proto(collective_device_list={"replica_groups": LISTED}),
        proto(collective_device_list={"iota_replica_group_list": IOTA}),
        proto(iota_collective_device_list=IOTA),
        proto(
            mesh_axes_replica_group_list={
                "mesh": {"axes": [{"name": "a", "size": 2}, {"name": "b", "size": 4}]},
                "axes": [{"mesh_axis_index": 0}],
            }
        ),
        proto(
            mesh_axes_replica_group_list={
                "mesh": {"axes": [{"name": "d", "size": 8}]},
                "axes": [{"mesh_axis_index": 0, "sub_axis_info": {"pre_size": 1, "size": 2}}],
            }
        ),
    ],
)
def test_each_field_of_the_proto(instruction: HloInstructionProto) -> None:
    assert groups_of_proto(instruction) == COLUMNS


def test_a_proto_without_groups_and_one_with_an_unknown_axis() -> None:
    assert groups_of_proto(proto()) == ()
    mesh = {"axes": [{"name": "d", "size": 8}]}
    for axis in ({"mesh_axis_index": 1}, {"mesh_axis_index": -1}):
        damaged = proto(mesh_axes_replica_group_list={"mesh": mesh, "axes": [axis]})
        assert groups_of_proto(damaged) is None


def parsed(line: str) -> CollectiveGroups | None:
    return (
        InstructionParser(LineReader(SourceText("hlo.txt", line), 1), CallChains())
        .parse(line)[0]
        .collective
    )


def test_a_line_of_text() -> None:
    start = "  %g = f32[8]{0} all-gather(%p), channel_id=7, replica_groups="
    assert parsed(f"{start}mesh['a'=2,'b'=4] {{'b'}}, dimensions={{0}}") == CollectiveGroups(
        ROWS, (), 7
    )
    # The device ids follow a comma, like a separate attribute.
    permuted = "mesh['a'=2,'b'=2], device_ids=([0,2,1,3]) {'b'}"
    assert parsed(f"{start}{permuted}, dimensions={{0}}") == CollectiveGroups(
        ((0, 2), (1, 3)), (), 7
    )
    ring = "  %p = f32[8]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}"
    assert parsed(ring) == CollectiveGroups((), ((0, 1), (1, 0)), None)
    assert parsed("  %d = f32[8]{0} all-gather-done(%s)") is None
    assert parsed("  %a = f32[8]{0} add(%x, %y)") is None


def test_a_line_with_an_unknown_axis_is_rejected() -> None:
    with pytest.raises(DumpError, match=r"hlo\.txt:1: expected replica groups, found .*'e'"):
        parsed("  %g = f32[8]{0} all-gather(%p), replica_groups=mesh['d'=8] {'e'}")
