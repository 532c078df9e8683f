"""Collectives of programs compiled for GPUs that are not attached."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.folders import STEPS
from tests.steps import collective_cases as cases
from xlapipe.cli import main
from xlapipe.dump.dump import Dump, open_dump, read_file
from xlapipe.dump.readers import read_path
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
    ParameterBytes,
)
from xlapipe.expect.expectation import Violation
from xlapipe.plans.collectives import Collective

pytestmark = pytest.mark.jax

NAMES = (
    "reference",
    "layers",
    "scanned",
    "scanned_again",
    "carried",
    "kinds",
    "by_sharding",
    "convolved",
    "nested",
)
WEIGHT_BYTES = cases.WIDE * cases.WIDE * 2
SHARD_BYTES = WEIGHT_BYTES // cases.DEVICES
SMALL_BYTES = cases.HIDDEN * cases.HIDDEN * 2

Dumps = dict[str, Dump]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    out = tmp_path_factory.mktemp("collectives")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        one_host = [f"collective_cases:{name}" for name in NAMES if name != "kinds"]
        assert main(["dump", *one_host, "--out", str(out), "--jobs", "2", "--json"]) == 0
        two_hosts = ["collective_cases:kinds", "--topology", "2x2"]
        assert main(["dump", *two_hosts, "--out", str(out), "--json"]) == 0
    opened = [open_dump(path.parent) for path in out.glob("*/*/manifest.json")]
    return {dump.manifest.workload.replace("-", "_"): dump for dump in opened}


def collectives(dump: Dump) -> tuple[Collective, ...]:
    assert dump.plan.collectives is not None
    return dump.plan.collectives


def holds(dump: Dump, expectation: Expectation) -> None:
    finding = expectation.check(dump)
    assert finding.holds, finding


def broken(dump: Dump, expectation: Expectation) -> Violation:
    """The first violation; each one has to state what was expected, what was found, what to try."""
    finding = expectation.check(dump)
    assert not finding.holds, finding
    for violation in finding.violations:
        assert violation.expected
        assert violation.found
        assert violation.advice
    return finding.violations[0]


def line_of(text: str) -> str:
    lines = (STEPS / "collective_cases.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"collective_cases.py:{number}"


GATHER, SCATTER = 'lax.all_gather(shard, "d"', 'lax.psum_scatter(gradient, "d"'


@pytest.mark.parametrize("name", NAMES)
def test_both_readers_agree(name: str, dumps: Dumps) -> None:
    path, plan = dumps[name].path, dumps[name].plan
    # The manifest's, which files of XLA do not have.
    assert read_path(path / "buffer-assignment.txt") == replace(plan, topology=None)


@pytest.mark.parametrize("name", NAMES)
def test_a_result_has_the_line_of_its_collective(name: str, dumps: Dumps) -> None:
    """The partitioner's own collectives have no line: theirs is that of the nearest user."""
    plan = dumps[name].plan
    for collective in collectives(dumps[name]):
        assert collective.source is not None
        for instruction in collective.defined_by:
            if instruction in plan.values_of_instruction:
                assert plan.nearest_source(instruction) == collective.source


def test_a_gather_of_the_partitioner_is_shown_at_the_line_that_needs_it(
    dumps: Dumps, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = dumps["convolved"]
    assert [c.kind for c in collectives(dump)] == ["all-gather"]
    assert main(["show", str(dump.path)]) == 0
    shown = capsys.readouterr().out
    assert "no source line" not in shown
    assert f"result of a collective, until {line_of('lax.conv_general_dilated(')}" in shown


def test_requested_collectives_of_the_reference(dumps: Dumps) -> None:
    """Three gathers and three scatters are traced; jax removes a gather before XLA compiles it."""
    dump = dumps["reference"]
    holds(dump, CollectivesAskedFor(3, "all-gather"))
    holds(dump, CollectivesAskedFor(3, "reduce-scatter"))
    holds(dump, DeadCollective("all-gather", "layer_0"))
    before = read_file(dump.path, "before_optimizations.txt").decode()
    assert before.count(" all-gather(") == 2
    assert before.count(" reduce-scatter(") == 3
    assert len(dump.manifest.requested_dots) == 5
    requested = dump.manifest.requested_collectives
    assert requested is not None
    assert {c.shapes for c in requested} == {("bfloat16[8,16]",), ("bfloat16[16,16]",)}
    assert {str(c.source) for c in requested} == {line_of(GATHER), line_of(SCATTER)}
    assert [c.op_name for c in requested][:3] == [
        "layer_2/all_gather",
        "layer_1/all_gather",
        "layer_0/all_gather",
    ]


def test_bytes_of_the_reference_are_independent_of_combining(dumps: Dumps) -> None:
    dump = dumps["reference"]
    holds(dump, CollectiveBytes(2 * SMALL_BYTES, "all-gather"))
    holds(dump, CollectiveBytes(2 * SMALL_BYTES // 2, "all-gather", operands=True))
    holds(dump, CollectiveBytes(3 * SMALL_BYTES // 2, "reduce-scatter"))
    holds(dump, CollectiveBytes(3 * SMALL_BYTES, "reduce-scatter", operands=True))
    holds(dump, CollectiveEach("all-gather", SMALL_BYTES))
    holds(dump, CollectiveCount(2))
    holds(dump, GatheredEndAtUse())
    holds(dump, GatheredLiveAtMost(2 * SMALL_BYTES))
    holds(dump, NoUndefinedCopy())
    # Two weights sharded over two devices, and four rows on both. The third weight, whose gather
    # is dead, is not a parameter.
    holds(dump, ParameterBytes(2 * SMALL_BYTES // 2 + 4 * cases.HIDDEN * 2))
    assert [leaf.path for leaf in dump.manifest.arguments if leaf.parameter_number is None] == [
        "shards[0]"
    ]


def test_expectations_that_the_reference_violates(dumps: Dumps) -> None:
    dump = dumps["reference"]
    alive = broken(dump, DeadCollective("all-gather", "layer_1"))
    assert str(alive.source) == line_of(GATHER)
    assert "over 2 devices" in alive.where
    unknown_scope = broken(dump, DeadCollective("all-gather", "layer_7"))
    assert "layer_0/all_gather" in unknown_scope.found
    count = broken(dump, CollectiveCount(2, "all-gather"))
    assert count.found == "1 (1 all-gather, 1 reduce-scatter)"
    requested = broken(dump, CollectivesAskedFor(2, "reduce-scatter"))
    assert str(requested.source) == line_of(SCATTER)
    size = broken(dump, CollectiveBytes(3 * SMALL_BYTES, "all-gather"))
    assert (size.found, str(size.source)) == (f"1,024 B, -{SMALL_BYTES} B", line_of(GATHER))
    assert broken(dump, CollectiveEach("all-gather", 5)).found == "512 B (bf16[16,16]{1,0})"
    live = broken(dump, GatheredLiveAtMost(2 * SMALL_BYTES - 1))
    assert live.found.startswith("1,024 B: all-gather")
    assert str(live.source) == line_of(GATHER)
    assert broken(dump, CollectivesOverlap("all-gather")).found.endswith("is synchronous")


def test_gathers_that_overlap_with_gemms(dumps: Dumps) -> None:
    """XLA starts a layer's gather before the gemm of the previous layer."""
    dump = dumps["layers"]
    for kind in ("all-gather", "reduce-scatter"):
        holds(dump, CollectiveCount(cases.LAYERS, kind))
        holds(dump, CollectivesOverlap(kind, all_but=1, gemms=True))
        assert "is synchronous" in broken(dump, CollectivesOverlap(kind)).found
    holds(dump, CollectiveBytes(cases.LAYERS * WEIGHT_BYTES, "all-gather"))
    holds(dump, CollectiveBytes(cases.LAYERS * SHARD_BYTES, "reduce-scatter"))
    assert {collective.wire_bytes for collective in collectives(dump)} == {
        WEIGHT_BYTES * (cases.DEVICES - 1) // cases.DEVICES
    }
    # The weights of all layers except the first are kept for the backward pass.
    holds(dump, GatheredLiveAtMost((cases.LAYERS - 1) * WEIGHT_BYTES))
    assert broken(dump, GatheredLiveAtMost(2 * WEIGHT_BYTES)).where.startswith("allocation")


def test_a_scan_over_layers_has_the_same_bytes(dumps: Dumps) -> None:
    """XLA moves one trip out of the backward loop; the totals do not change."""
    dump = dumps["scanned"]
    holds(dump, CollectiveBytes(cases.LAYERS * WEIGHT_BYTES, "all-gather"))
    holds(dump, CollectiveBytes(cases.LAYERS * SHARD_BYTES, "reduce-scatter"))
    executions = Counter[str]()
    for collective in collectives(dump):
        assert collective.executions is not None
        executions[collective.kind] += collective.executions
    assert executions == {"all-gather": cases.LAYERS, "reduce-scatter": cases.LAYERS}
    requested = dump.manifest.requested_collectives
    assert requested is not None
    assert {c.executions for c in requested} == {cases.LAYERS}
    # The scan saves every gathered weight in a separate stack for the backward pass.
    saved = broken(dump, GatheredLiveAtMost(2 * WEIGHT_BYTES))
    assert saved.found.startswith(f"{(cases.LAYERS + 1) * WEIGHT_BYTES:,} B: ")
    assert "dynamic_update_slice" in saved.found
    holds(dump, GatheredEndAtUse())


def test_gathering_again_in_the_backward_pass_keeps_one_weight_alive(dumps: Dumps) -> None:
    """The advice of `GatheredLiveAtMost`: gathers twice the bytes and saves none of them."""
    dump = dumps["scanned_again"]
    holds(dump, GatheredLiveAtMost(WEIGHT_BYTES))
    holds(dump, CollectiveBytes(2 * cases.LAYERS * WEIGHT_BYTES, "all-gather"))
    holds(dump, CollectiveBytes(cases.LAYERS * SHARD_BYTES, "reduce-scatter"))
    holds(dump, CollectivesAskedFor(2, "all-gather"))
    assert dump.plan.totals.temp_bytes < dumps["scanned"].plan.totals.temp_bytes - 3 * WEIGHT_BYTES


def test_a_gathered_weight_that_a_loop_reads_is_alive_during_the_loop(dumps: Dumps) -> None:
    dump = dumps["carried"]
    holds(dump, GatheredLiveAtMost(WEIGHT_BYTES))
    holds(dump, GatheredEndAtUse())
    holds(dump, CollectiveBytes(WEIGHT_BYTES, "all-gather"))


def test_every_kind(dumps: Dumps) -> None:
    dump = dumps["kinds"]
    by_kind_and_bytes = {(c.kind, c.output_bytes): c for c in collectives(dump)}
    all_gather = by_kind_and_bytes["all-gather", 262_144]
    all_to_all = by_kind_and_bytes["all-to-all", 131_072]
    permute = by_kind_and_bytes["collective-permute", 131_072]
    assert all_gather.wire_bytes == 131_072
    assert all_to_all.wire_bytes == 65_536
    assert permute.wire_bytes == 131_072
    across, within = ((0, 2), (1, 3)), ((0, 1), (2, 3))
    assert all_gather.replica_groups == within
    assert all_gather.crosses_hosts(2) is False
    assert all_to_all.replica_groups == across
    assert all_to_all.crosses_hosts(2) is True
    assert sorted(permute.source_target_pairs) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    all_reduces = [c for c in collectives(dump) if c.kind == "all-reduce"]
    assert sorted(c.wire_bytes or 0 for c in all_reduces) == [2, 131_072, 196_608]
    assert {c.group_size for c in all_reduces} == {2, 4}


def test_bytes_in_a_loop_with_an_unknown_trip_count_are_unknown(dumps: Dumps) -> None:
    unknown = broken(dumps["kinds"], CollectiveBytes(262_144, "all-reduce"))
    assert unknown.found.endswith("runs an unknown number of times")
    assert str(unknown.source) == line_of('return lax.psum(carry, "a")')


def test_a_gathered_output_and_a_copy_of_undefined_data(dumps: Dumps) -> None:
    dump = dumps["kinds"]
    output = broken(dump, GatheredEndAtUse())
    assert output.found == "it is an output, or alive to the end of the step"
    assert str(output.source) == line_of('lax.all_gather(x, "b"')
    undefined = broken(dump, NoUndefinedCopy())
    assert "copies 524,288 B of undefined data from empty" in undefined.found
    assert str(undefined.source) == line_of("undefined = lax.empty")
    holds(dump, GatheredLiveAtMost(262_144))  # copies of other data do not count


def test_collectives_that_only_shardings_cause_are_not_requested(dumps: Dumps) -> None:
    dump = dumps["by_sharding"]
    assert dump.manifest.requested_collectives == ()
    holds(dump, CollectivesAskedFor(0, "all-gather"))
    holds(dump, CollectiveEach("all-gather", 512 * 512 * 2))
    assert broken(dump, CollectivesAskedFor(1, "all-gather")).found == "0"


def test_nested_loops_and_branches(dumps: Dumps) -> None:
    by_kind = {collective.kind: collective for collective in collectives(dumps["nested"])}
    assert by_kind["all-gather"].executions == 15
    assert by_kind["all-reduce"].executions is None
    requested = dumps["nested"].manifest.requested_collectives
    assert requested is not None
    assert [(c.kind, c.executions) for c in requested] == [
        ("all-gather", 15),
        ("all-reduce", None),
    ]
    assert all(c.source is not None for c in requested)


def test_show_lists_collectives(dumps: Dumps, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dumps["scanned"].path), "--collectives"]) == 0
    shown = capsys.readouterr().out
    assert "requested: 1 all-gather, 1 reduce-scatter" in shown
    assert f"all-gather: {cases.LAYERS * WEIGHT_BYTES:,} B output and " in shown
    assert f"async × {cases.LAYERS}" in shown
    assert main(["show", str(dumps["kinds"].path), "--collectives"]) == 0
    shown = capsys.readouterr().out
    assert "all-reduce: unknown bytes output and unknown bytes on the wire" in shown
    assert "{0,2},{1,3} across hosts" in shown
    assert "sync × ?" in shown
    assert main(["show", "--json", str(dumps["kinds"].path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    rows = {(row["kind"], row["output_bytes"]): row for row in figures["collectives"]}
    assert rows["all-to-all", 131_072]["crosses_hosts"] is True
    assert rows["all-reduce", 2]["step_output_bytes"] is None
    assert len(figures["requested_collectives"]) == 6


def test_check_and_show_list_collectives(dumps: Dumps, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(dumps["reference"].path)
    assert main(["check", path]) == 0
    assert "  collectives: 1 all-gather, 1 reduce-scatter; requested: 3" in capsys.readouterr().out
    assert main(["check", "--json", path]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in result["collectives"]] == ["all-gather", "reduce-scatter"]
    assert len(result["requested_collectives"]) == 6
    assert main(["show", "--all", path]) == 0
    text = capsys.readouterr().out
    assert "\nCollectives" in text
    assert "all-gather (2 combined)" in text


def test_plan_txt_lists_collectives(dumps: Dumps) -> None:
    text = read_file(dumps["scanned"].path, "plan.txt").decode()
    section = text.partition("[collectives]\n")[2].partition("\n\n")[0].splitlines()
    assert len(section) == 3
    expected = (
        f"all-gather, {SHARD_BYTES:,} B -> {WEIGHT_BYTES:,} B as bf16[1024,1024]{{1,0}}, devices "
        "{0,1,2,3}, asynchronous beside "
    )
    assert expected in section[0]
    assert f"{cases.LAYERS} × a step, jit(looped)/" in section[0]
    assert "collective_cases.py" not in text
