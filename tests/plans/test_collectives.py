"""Collectives of real dumps and of hand-written modules: kinds, bytes, devices, overlap."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.shared.dumps import DATA, DIRECTORIES, name_of
from tests.shared.programs import program_of
from tests.shared.sample_records import MANIFEST
from xlapipe.differences import compare_opened
from xlapipe.dump.manifest import Manifest
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import DumpError, PlanMismatchError
from xlapipe.expect import (
    CollectiveBytes,
    CollectiveCount,
    CollectiveEach,
    CollectivesAskedFor,
    CollectivesOverlap,
    DeadCollective,
    Expectation,
    GatheredEndAtUse,
    GatheredLiveAtMost,
    NoUndefinedCopy,
)
from xlapipe.expect.gathered import gathered_values, most_alive
from xlapipe.plans import HloModule, Plan
from xlapipe.plans.collectives import split_scopes, wire_bytes
from xlapipe.plans.hlo import CollectiveGroups
from xlapipe.plans.loops import executions
from xlapipe.plans.program import Program, RequestedCollective
from xlapipe.plans.verify import verify

SHARDED = [path for path in DIRECTORIES if path.name == "sharded"]


@pytest.mark.parametrize("directory", SHARDED, ids=name_of)
def test_what_the_sharded_program_exchanges(directory: Path) -> None:
    """Four jaxlibs, which combine and schedule the same collectives differently."""
    plan = read_path(directory)
    assert plan.collectives is not None
    assert sorted(
        (collective.kind, collective.output_bytes, collective.wire_bytes)
        for collective in plan.collectives
    ) == [
        ("all-gather", 262_144, 131_072),
        ("all-gather", 1_048_576, 524_288),
        ("all-gather", 4_194_304, 2_097_152),  # of two weights
        ("all-to-all", 131_072, 65_536),
        ("all-to-all", 524_288, 262_144),
        ("reduce-scatter", 1_048_576, 1_048_576),
    ]
    assert {collective.replica_groups for collective in plan.collectives} == {((0, 1),)}
    assert {collective.executions for collective in plan.collectives} == {1}
    for collective in plan.collectives:
        assert collective.done is None or collective.done in plan.instructions
        assert collective.start is not None
        assert collective.end is not None
        assert collective.start <= collective.end
        assert bool(collective.overlapped_by) <= (collective.done is not None)
        values = [
            value
            for allocation in plan.allocations
            for value in allocation.values
            if value.instruction in collective.defined_by
        ]
        written_bytes = [v.size_bytes for v in values if not v.shape.is_tuple]
        assert sum(written_bytes) == collective.output_bytes
    (combined,) = [collective for collective in plan.collectives if len(collective.results) == 2]
    assert len(combined.operands) == 2
    assert sum(not collective.asynchronous for collective in plan.collectives) == 1


@pytest.mark.parametrize("directory", SHARDED, ids=name_of)
def test_gathered_values_end_at_a_reader(directory: Path) -> None:
    plan = read_path(directory)
    values = gathered_values(plan)
    assert values
    assert not any(value.is_output for value in values)
    assert 4_194_304 <= most_alive(values)[0] <= sum(held.value.size_bytes for held in values)


def module_of(*computations: str) -> HloModule:
    text = "HloModule m, is_scheduled=true\n\n" + "\n\n".join(computations) + "\n"
    return parse_hlo(SourceText("m.txt", text)).module


def plan_of(*computations: str) -> Plan:
    return Plan((), module=module_of(*computations))


def entry(*lines: str) -> str:
    return (
        "ENTRY %main (x: f32[4]) -> f32[8] {\n" + "\n".join(f"  {line}" for line in lines) + "\n}"
    )


def gather(groups: str = "{{0,1}}") -> str:
    return f"ROOT %g = f32[8]{{0}} all-gather(%x), replica_groups={groups}, dimensions={{0}}"


X = "%x = f32[4]{0} parameter(0)"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("{{0,1,2}}", "all-gather g over 3 devices to have the same total size, found operands of"),
        ("{{0,1,2,3}}", "over 4 devices .* found operands of 16 bytes, results of 32"),
        ("{{0,1},{1,2}}", "each device once in the groups of g, found a device twice"),
    ],
)
def test_groups_that_do_not_fit_the_bytes_are_rejected(groups: str, message: str) -> None:
    with pytest.raises(PlanMismatchError, match=message):
        verify(plan_of(entry(X, gather(groups))), where="here")


def test_unknown_devices_leave_bytes_unknown() -> None:
    """No groups means one group of all devices, of unknown number."""
    (collective,) = plan_of(entry(X, gather("{}"))).collectives or ()
    assert (collective.group_size, collective.wire_bytes) == (None, None)
    assert collective.devices == "all"
    assert (collective.operand_bytes, collective.output_bytes) == (16, 32)
    assert collective.crosses_hosts(1) is None


@pytest.mark.parametrize(
    ("groups", "text", "crosses"),
    [
        ("{{0,1},{2,3}}", "{0,1},{2,3}", False),
        ("{{0,2,1},{3}}", "{0,2,1},{3}", True),
        ("[8,4]<=[32]", "8 × 4: {0,1,2,3},…", False),
        ("[1,512]<=[512]", "1 × 512: {0,1,…,511}", True),
        ("[8,64]<=[64,8]T(1,0)", "8 × 64: {0,8,…,504},…", True),
        # Sixteen devices are listed, and eight of one group.
        ("[2,8]<=[16]", "{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}", False),
        ("[2,9]<=[18]", "2 × 9: {0,1,…,8},…", True),
        ("[3,8]<=[24]", "3 × 8: {0,1,2,3,4,5,6,7},…", False),
        ("[3,9]<=[27]", "3 × 9: {0,1,…,8},…", True),
    ],
)
def test_devices_as_text(groups: str, text: str, crosses: bool) -> None:
    (collective,) = plan_of(entry(X, gather(groups))).collectives or ()
    assert collective.devices == text
    assert collective.crosses_hosts(2 if groups.startswith("{") else 8) is crosses


@pytest.mark.parametrize(
    ("pairs", "end"), [("{{0,1},{0,2}}", "source"), ("{{1,0},{2,0}}", "target")]
)
def test_a_device_sends_to_one_and_receives_from_one(pairs: str, end: str) -> None:
    permute = f"ROOT %p = f32[4]{{0}} collective-permute(%x), source_target_pairs={pairs}"
    with pytest.raises(PlanMismatchError, match=f"each device at most once as a {end} of p"):
        verify(plan_of(entry(X, permute)), where="here")
    ring = permute.replace(pairs, "{{0,1},{1,0}}")
    verify(plan_of(entry(X, ring)), where="here")


LOOP = """%body (c: (s32[], f32[4])) -> (s32[], f32[4]) {
  %c = (s32[], f32[4]{0}) parameter(0)
  %one = f32[4]{0} get-tuple-element(%c), index=1
  %sum = f32[4]{0} all-reduce(%one), replica_groups={{0,1}}, to_apply=%add
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %next = (s32[], f32[4]{0}) tuple(%i, %sum)
}"""
CONDITION = """%condition (c: (s32[], f32[4])) -> pred[] {
  %d = (s32[], f32[4]{0}) parameter(0)
  %two = f32[4]{0} get-tuple-element(%d), index=1
  %all = f32[4]{0} all-reduce(%two), replica_groups={{0,1}}, to_apply=%add
  ROOT %less = pred[] constant(true)
}"""
ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}"""


def looping(config: str) -> Plan:
    return plan_of(
        ADD,
        LOOP,
        CONDITION,
        "ENTRY %main (p: (s32[], f32[4])) -> (s32[], f32[4]) {\n"
        "  %p = (s32[], f32[4]{0}) parameter(0)\n"
        "  ROOT %w = (s32[], f32[4]{0}) while(%p), condition=%condition, body=%body"
        f"{config}\n}}",
    )


def test_several_kinds_are_counted_together() -> None:
    program = Program(looping(', backend_config={"known_trip_count":{"n":"6"}}'))
    both = ("all-reduce", "reduce-scatter")
    assert CollectiveCount(2, both).check(program).holds
    assert CollectiveBytes(13 * 16, both).check(program).holds
    (violation,) = CollectiveBytes(1, ("all-gather", "reduce-scatter")).check(program).violations
    assert violation.expected == "1 B of results of all-gather or reduce-scatter"


def test_a_collective_in_a_loop_counts_once_per_trip() -> None:
    known = looping(', backend_config={"known_trip_count":{"n":"6"}}')
    assert {c.instruction: c.executions for c in known.collectives or ()} == {"sum": 6, "all": 7}
    total = CollectiveBytes(13 * 16, "all-reduce").check(Program(known))
    assert total.holds, total
    unknown = looping("")
    assert {c.executions for c in unknown.collectives or ()} == {None}
    finding = CollectiveBytes(13 * 16, "all-reduce").check(Program(unknown))
    assert [violation.found.partition(" runs")[0] for violation in finding.violations] == [
        "all-reduce sum",
        "all-reduce all",
    ]
    # The operand is an element of a tuple; its bytes are derived from the result.
    assert {c.operand_bytes for c in known.collectives or ()} == {16}
    assert known.module is not None
    assert executions(known.module)["add"] == 13


WRAPPED = """%wrapped (y: f32[4]) -> f32[8] {
  %y = f32[4]{0} parameter(0)
  ROOT %inner = f32[8]{0} all-gather(%y), replica_groups={{0,1}}, dimensions={0}
}"""


@pytest.mark.parametrize("is_sync", [False, True])
def test_an_asynchronous_collective_and_the_work_that_it_overlaps(is_sync: bool) -> None:
    config = f'{{"collective_backend_config":{{"is_sync":{str(is_sync).lower()}}}}}'
    plan = plan_of(
        WRAPPED,
        entry(
            X,
            "%s = ((f32[4]{0}), f32[8]{0}) async-start(%x), calls=%wrapped, "
            f"backend_config={config}",
            "%work = f32[4]{0} add(%x, %x)",
            "%name = f32[2,2]{1,0} bitcast(%work)",
            "%number = u32[] partition-id()",
            "%other = u32[] replica-id()",
            "%copying = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%x)",
            "%token = token[] after-all()",
            "%sent = (f32[4]{0}, u32[], token[]) send(%x, %token)",
            "%received = (f32[4]{0}, u32[], token[]) recv(%token)",
            "%o = f32[4]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%wrapped",
            "ROOT %e = f32[8]{0} async-done(%s)",
        ),
    )
    first, second = plan.collectives or ()
    assert (first.instruction, first.done, first.kind) == ("s", "e", "all-gather")
    assert first.defined_by == ("s", "inner")
    assert (first.asynchronous, first.overlapped_by) == (not is_sync, ("work",))
    assert (first.operand_bytes, first.output_bytes) == (16, 32)
    assert (second.instruction, second.asynchronous, second.done) == ("o", False, None)
    assert CollectivesOverlap("all-gather").check(Program(plan)).holds is not is_sync
    assert not CollectivesOverlap("all-gather", gemms=True).check(Program(plan)).holds
    assert CollectivesOverlap("all-gather", all_but=1, gemms=True).check(Program(plan)).holds
    assert not CollectivesOverlap("all-to-all").check(Program(plan)).holds


@pytest.mark.parametrize(
    ("op_name", "scopes"),
    [
        (None, ()),
        ("jit(f)/(a)/psum", ("jit(f)/(a)/psum",)),
        ("jit(f)/a/psum", ("jit(f)/a/psum",)),
        ("jit(f)/(a/psum:b/psum)", ("jit(f)/a/psum", "jit(f)/b/psum")),
        ("jit(f)/(jvp(a):t(jvp(b)))/psum", ("jit(f)/jvp(a)/psum", "jit(f)/t(jvp(b))/psum")),
        ("(a:b)/(c:d)", ("a/c", "a/d", "b/c", "b/d")),
        ("jit(f)/(a:b", ("jit(f)/(a:b",)),
        ("jit(f:g)/psum", ("jit(f:g)/psum",)),
        ("(a:b/(c:d))/psum", ("a/psum", "b/c/psum", "b/d/psum")),
        ("/".join(["(a:b)"] * 40), ("/".join(["(a:b)"] * 40),)),
    ],
)
def test_scopes_of_a_combined_collective(op_name: str | None, scopes: tuple[str, ...]) -> None:
    assert split_scopes(op_name) == scopes


@pytest.mark.parametrize(
    ("kind", "operand", "output", "size", "expected"),
    [
        ("all-gather", 100, 400, 4, 300),
        ("reduce-scatter", 400, 100, 4, 300),
        ("all-reduce", 400, 400, 4, 600),
        ("all-reduce", 2, 2, 3, 3),  # 8/3, rounded up
        ("all-to-all", 400, 400, 4, 300),
        ("collective-permute", 400, 400, None, 400),
        ("collective-broadcast", 400, 400, 4, 400),
        ("ragged-all-to-all", 400, 400, 4, None),
        ("all-gather", 100, None, 4, None),
        ("all-reduce", 400, 400, None, None),
        ("all-gather", 100, 100, 1, 0),
    ],
)
def test_bytes_on_the_wire(
    kind: str, operand: int | None, output: int | None, size: int | None, expected: int | None
) -> None:
    assert wire_bytes(kind, operand, output, size) == expected


ALL = (
    CollectiveCount(2, "all-gather"),
    CollectiveBytes(2, "all-gather", operands=True),
    CollectiveBytes(2, ("all-gather", "all-reduce")),
    CollectiveEach("all-gather", 2),
    CollectivesAskedFor(3, "all-gather"),
    CollectivesOverlap("all-gather", all_but=1, gemms=True),
    DeadCollective("all-gather", "layer_0"),
    GatheredLiveAtMost(3),
    GatheredEndAtUse(),
    NoUndefinedCopy(),
)


@pytest.mark.parametrize("expectation", ALL, ids=lambda expectation: type(expectation).__name__)
def test_a_dump_without_a_complete_module_fails(expectation: Expectation) -> None:
    unknown = Program(Plan((), module=HloModule("m", {}, None, complete=False)))
    finding = expectation.check(unknown)
    assert not finding.holds
    assert finding.measured == "unknown"
    assert all(violation.advice for violation in finding.violations)


def requested_gather(scope: str) -> RequestedCollective:
    return RequestedCollective("all-gather", f"{scope}/all_gather", ("f32[4]",), 1, None)


def test_a_combined_gather_without_scopes_may_contain_a_dead_one() -> None:
    line = (
        "ROOT %g = (f32[8]{0}, f32[8]{0}) all-gather(%x, %x), replica_groups={{0,1}}, "
        'dimensions={0}, metadata={op_name="jit(f)/a/all_gather"}'
    )
    plan = plan_of(entry(X, line))
    two = program_of(plan, requested_collectives=(requested_gather("a"), requested_gather("b")))
    (violation,) = DeadCollective("all-gather", "b").check(two).violations
    assert violation.found == "2 results, scopes: jit(f)/a/all_gather"
    # With two gathers in scope a, both results are accounted for.
    three = program_of(
        plan,
        requested_collectives=(requested_gather("a"), requested_gather("a"), requested_gather("b")),
    )
    assert DeadCollective("all-gather", "b").check(three).holds
    assert not DeadCollective("all-gather", "a").check(three).holds


def changed(plan: Plan, name: str, **fields: object) -> XlaFiles:
    """The plan with changed fields of one instruction."""
    assert plan.module is not None
    computations = {
        key: dataclasses.replace(
            computation,
            instructions=tuple(
                instruction._replace(**fields) if instruction.name == name else instruction
                for instruction in computation.instructions
            ),
        )
        for key, computation in plan.module.computations.items()
    }
    module = dataclasses.replace(plan.module, computations=computations)
    return XlaFiles(dataclasses.replace(plan, module=module), path=Path("b"))


def changes_text(a: XlaFiles, b: XlaFiles) -> str:
    return " ".join(sentence.text for sentence in compare_opened(a, b).sentences().changes)


def test_diff_reports_other_devices_and_synchronous_waiting() -> None:
    plan = read_path(DATA / "jaxlib-0.11.2" / "sharded")
    one = XlaFiles(plan, path=Path("a"))
    assert compare_opened(one, one).same
    groups = CollectiveGroups(((0, 2), (1, 3)), (), 1)
    other = changed(plan, "all-gather.2.2", collective=groups)
    assert "devices {0,1} → {0,2},{1,3}" in changes_text(one, other)
    # The number of a channel has no meaning.
    renumbered = changed(plan, "all-gather.2.2", collective=CollectiveGroups(((0, 1),), (), 99))
    assert compare_opened(one, renumbered).same
    waits = '{"collective_backend_config":{"is_sync":true}}'
    waiting = changed(plan, "all-to-all-start", backend_config=waits)
    assert "waiting asynchronous → synchronous" in changes_text(one, waiting)


def test_a_manifest_keeps_the_requested_collectives() -> None:
    """For a single device the key is left out; without the key, a mesh has an unknown record."""
    one_device = MANIFEST.to_json()
    assert "requested_collectives" not in one_device
    assert Manifest.from_json(one_device, where="m").requested_collectives == ()
    meshed = dataclasses.replace(
        MANIFEST, mesh={"d": 2}, requested_collectives=(requested_gather("a"),)
    )
    data = json.loads(json.dumps(meshed.to_json()))
    assert Manifest.from_json(data, where="m") == meshed
    empty = dataclasses.replace(meshed, requested_collectives=())
    assert Manifest.from_json(empty.to_json(), where="m") == empty
    del data["requested_collectives"]
    assert Manifest.from_json(data, where="m").requested_collectives is None
    for damaged in ([{"kind": "all-gather"}], ["x"], 3, [{**meshed_row(meshed), "kind": 1}]):
        with pytest.raises(DumpError, match=r"m: requested_collectives.*: expected "):
            Manifest.from_json({**data, "requested_collectives": damaged}, where="m")


def meshed_row(manifest: Manifest) -> dict[str, object]:
    rows: list[dict[str, object]] = manifest.to_json()["requested_collectives"]
    return rows[0]
