"""IR dumps in the grammars of torch's versions: nodes, the derived plan, findings."""

from pathlib import Path

import pytest

from tests.inductor import written
from xlapipe.errors import DumpError
from xlapipe.inductor.inductor_plan import FindingKind, InductorPlan, KernelKind
from xlapipe.inductor.reader import read_inductor
from xlapipe.plans.gemms import GemmBackend


def plan_of(tmp_path: Path, text: str, name: str = "ir_post_fusion.txt") -> InductorPlan:
    """The one plan in `text`."""
    path = tmp_path / name
    path.write_text(text)
    (plan,) = read_inductor(path).plans
    return plan


def test_a_plan_is_derived(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.IR_2_6)
    totals = plan.totals
    # buf0 [4, 8] and buf1 [4, 16] in float32; buf2 is written over buf1.
    assert totals.own_peak_bytes == 4 * 8 * 4 + 4 * 16 * 4
    assert totals.output_bytes == totals.end_bytes == 4 * 16 * 4
    # The layout of arg1_1 is not printed: [4, 8] @ arg1_1 = [4, 16] gives its size.
    assert totals.argument_bytes == 4 * 8 * 4 + 8 * 16 * 4
    assert totals.unknown_allocations == 0
    assert not plan.exact
    assert "derived" in plan.basis
    (shared,) = (a for a in plan.allocations if len(a.values) > 1)
    assert {value.name for value in shared.values} == {"buf1", "buf2"}
    assert [gemm.backend for gemm in plan.gemms] == [GemmBackend.CUBLAS]
    assert plan.findings == ()


def test_buffers_without_layouts_are_unknown_not_zero(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.without_layouts(written.IR_2_6))
    assert plan.totals.unknown_allocations == 3
    assert plan.totals.argument_bytes is None
    assert plan.allocations == ()
    assert [kernel.kind for kernel in plan.kernels] == [
        KernelKind.TRITON,
        KernelKind.EXTERN,
        KernelKind.TRITON,
    ]


def test_values_are_alive_over_the_schedule(tmp_path: Path) -> None:
    alive = {live.name: live for live in plan_of(tmp_path, written.IR_2_6).live_ranges}
    assert (alive["buf0"].start, alive["buf0"].end) == (0, 1)
    assert (alive["buf1"].start, alive["buf1"].end) == (1, 2)
    assert (alive["buf2"].start, alive["buf2"].end) == (2, 3)  # to the end of the call


def test_a_fused_node(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.IR_FUSED)
    # buf0 is used inside the kernel only. The fallback's result is counted.
    assert plan.totals.own_peak_bytes == 128 + 128 + 64 + 256
    assert plan.totals.output_bytes == 128 + 128 + 64
    (unknown,) = plan.unknown
    assert (unknown.name, unknown.result_bytes) == ("torch.ops.aten.sort.default", 256)


def test_findings_name_node_bytes_and_line(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.IR_FUSED)
    found = {finding.kind: finding for finding in plan.findings}
    assert len(found) == len(plan.findings) == 3
    duplicate = found[FindingKind.DUPLICATE_STORE]
    assert (duplicate.node, duplicate.size_bytes) == ("op2", 128)
    assert "buf2" in duplicate.detail
    assert "buf1" in duplicate.detail
    copied = found[FindingKind.UNINITIALISED]
    assert (copied.node, copied.size_bytes) == ("op4", 64)
    assert "reads buf3" in copied.detail
    unread = found[FindingKind.NEVER_READ]
    assert (unread.node, unread.size_bytes) == ("op6", 256)
    lines = written.IR_FUSED.splitlines()
    for finding in plan.findings:
        assert lines[finding.line - 1].strip().startswith(f"{finding.node}: ")


def test_values_that_differ_are_no_duplicates(tmp_path: Path) -> None:
    text = written.IR_FUSED.replace("exp = ops.exp(load)", "exp = ops.sin(load)", 1)
    kinds = [finding.kind for finding in plan_of(tmp_path, text).findings]
    assert FindingKind.DUPLICATE_STORE not in kinds


def test_a_buffer_with_another_use_is_not_written_over(tmp_path: Path) -> None:
    text = written.IR_2_6.replace(
        "[NodeUser(node=SchedulerNode(name='op2'), can_inplace=True, is_weak=False)]",
        "[\n        NodeUser(node=SchedulerNode(name='op2'), can_inplace=True, is_weak=False),\n"
        "        NodeUser(node=OUTPUT, can_inplace=False, is_weak=False),\n    ]",
    )
    plan = plan_of(tmp_path, text)
    assert plan.totals.own_peak_bytes == 256 + 256  # buf0 is freed before buf2 is made
    assert plan.totals.output_bytes == 512


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("op1.writes = [StarDep(name='buf1', mode=None)]", "op1.writes = [Star]", "dependency"),
        ("op2: SchedulerNode(ComputedBuffer)", "op2 SchedulerNode", "first line of a node"),
        ("can_inplace=True", "can_inplace=Maybe", "a user"),
        ("op2.group.device", "op1.group.device", "a line of node op2"),
        ("mul = ops.mul(load, constant)", "mul = ops.mul(load, constant", "Python"),
    ],
)
def test_damage_is_an_error_with_the_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    before, _, _ = written.IR_2_6.partition(old)
    assert before != written.IR_2_6
    line = before.count("\n") + 1
    with pytest.raises(DumpError, match=rf":{line}: expected .*{expected}.*, found .*; fix: "):
        plan_of(tmp_path, written.IR_2_6.replace(old, new, 1))


def test_a_buffer_that_is_defined_twice(tmp_path: Path) -> None:
    head, _, tail = written.IR_2_6.rpartition("op2: ")
    with pytest.raises(DumpError, match="expected one definition of buf1, found a second one"):
        plan_of(tmp_path, f"{head}op2: " + tail.replace("buf2", "buf1"))
