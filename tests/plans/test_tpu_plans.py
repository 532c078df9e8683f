"""Plans of TPUs: files, padding, memory spaces, moves, donation and products."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared import tpu_texts
from tests.shared.hlo_objects import instruction
from tests.shared.programs import program_of
from xlapipe.cli import main
from xlapipe.differences.changes import SpaceChange
from xlapipe.differences.compare import compare
from xlapipe.dump.dump import check_memory_analysis
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.errors import PlanMismatchError
from xlapipe.expect import Donated, GemmCount, NoCopyAbove, ParameterBytes, TempAtMost, check_all
from xlapipe.plans import Plan
from xlapipe.plans.copies import find_copies, find_moves
from xlapipe.plans.donation import DonationOutcome, donations
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.padding import (
    padded_bytes,
    parameter_padding_bytes,
    tuple_table_bytes,
)
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program
from xlapipe.plans.shapes import shape_of
from xlapipe.report.findings import refused_finding

ARGUMENTS = (
    ArgumentLeaf("cache", (64, 1024), "bfloat16", 131072, donated=True, parameter_number=0),
    ArgumentLeaf("w", (1024, 130), "bfloat16", 266240, donated=False, parameter_number=1),
    ArgumentLeaf("row", (1, 1024), "bfloat16", 2048, donated=False, parameter_number=2),
)
OUTPUTS = (
    OutputLeaf("out[0]", (64, 1024), "bfloat16", 131072, index=0),
    OutputLeaf("out[1]", (64, 130), "bfloat16", 16640, index=1),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tpu_texts.write_dump(tmp_path / "dump")


@pytest.fixture
def plan(folder: Path) -> Plan:
    return read_path(folder)


@pytest.fixture
def program(plan: Plan) -> Program:
    return program_of(plan=plan, arguments=ARGUMENTS, outputs=OUTPUTS)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("bf16[17,130]{1,0:T(8,128)(2,1)}", 12_288),
        ("bf16[130,17]{0,1:T(8,128)(2,1)}", 12_288),
        ("f32[7]{0:T(128)}", 512),
        ("bf16[1000]{0:T(1024)(128)(2,1)}", 2_048),
        ("bf16[]{:T(256)}", 512),
        ("f32[]{:T(128)S(6)}", 512),
        ("u32[]", 4_096),
        ("u32[]{:S(2)}", 4),
        ("s4[8,256]{1,0:T(8,128)(8,1)E(4)}", 1_024),
        ("f32[1000,8,128]{2,1,0:T(8,128)SC(0:512)}", 512 * 4_096),
        ("pred[3]{0:T(512)(128)(4,1)}", 512),
        ("f32[0,8]{1,0:T(8,128)}", 0),
        ("token[]", 0),
        ("f32[<=8]{0:T(128)}", None),
        ("(f32[]{:T(128)})", None),
    ],
)
def test_padded_sizes(shape: str, size: int | None) -> None:
    assert padded_bytes(shape_of(shape)) == size


def test_tables_of_tuples() -> None:
    assert tuple_table_bytes(len(shape_of("()").parts)) == (0, 0)
    assert tuple_table_bytes(3) == (32, 512)
    assert tuple_table_bytes(200) == (800, 1024)


def test_the_platform_follows_from_the_layouts(plan: Plan) -> None:
    assert plan.platform == "tpu"
    assert plan.live_ranges is not None
    assert plan.live_ranges.live_range_peak_bytes is None  # a sum over memories, without padding
    assert plan.notes == ()


def test_the_total_is_that_of_hbm(plan: Plan) -> None:
    assert plan.totals.total_allocation_bytes == 32 + 278528 + 131072 + 4096 + 32768 + 512
    assert plan.total_bytes_used == tpu_texts.TOTAL
    sizes = {space: totals.total_allocation_bytes for space, totals in plan.spaces.items()}
    assert sizes == {
        MemorySpace.HBM: plan.totals.total_allocation_bytes,
        MemorySpace.HOST: 0,
        MemorySpace.VMEM: 409600,
        MemorySpace.OTHER: 4,
    }


def test_a_size_that_the_tiles_do_not_give_is_refused(tmp_path: Path) -> None:
    text = tpu_texts.ASSIGNMENT.replace("size 32768", "size 33280").replace("=32768", "=33280")
    values = tpu_texts.VALUES.replace(str(tpu_texts.TOTAL), str(tpu_texts.TOTAL + 512))
    folder = tpu_texts.write_dump(tmp_path, assignment=text, values=values)
    with pytest.raises(PlanMismatchError, match=r"fusion bf16\[64,130\].* in 32,768 bytes"):
        read_path(folder)


def test_moves_to_vmem_are_not_copies(plan: Plan) -> None:
    assert find_copies(plan) == ()
    moves = {
        move.copy.instruction: (str(move.source_space), str(move.target_space))
        for move in find_moves(plan)
    }
    assert moves == {
        "copy-start": ("hbm", "vmem"),
        "copy-start.1": ("hbm", "vmem"),
        "copy-start.2": ("vmem", "hbm"),
    }


def test_a_leaf_that_moves_is_in_place(program: Program) -> None:
    (row,) = donations(program)
    assert row.outcome is DonationOutcome.ALIASED
    assert row.output == "out[0]"
    assert {move.copy.instruction for move in row.moves} == {"copy-start", "copy-start.2"}


def test_the_element_of_a_tuple_that_is_moved_determines_the_memory(tmp_path: Path) -> None:
    """A fusion gives the cache and another value in HBM; the cache comes from VMEM all the same."""
    element = f"({tpu_texts.CACHE}, {tpu_texts.CACHE_IN_VMEM})"
    hlo = tpu_texts.HLO.replace(
        f"%update = {tpu_texts.CACHE_IN_VMEM} dynamic-update-slice(%copy-done, %row.1, %zero, ",
        f"%update = {element} custom-call(%copy-done, %row.1, %zero, ",
    ).replace("(%update", "(%update#1")
    assert hlo.count("%update#1") == 2
    moved = "<9 update @1> (size=131072,offset=0)"
    assignment = tpu_texts.ASSIGNMENT.replace(moved, moved.replace("update", "update{1}"))
    live_range = tpu_texts.LIVE_RANGE.replace("update{}", "update{1}")
    plan = read_path(
        tpu_texts.write_dump(tmp_path, hlo=hlo, assignment=assignment, live_range=live_range)
    )
    (move,) = (move for move in find_moves(plan) if move.copy.instruction == "copy-start.2")
    assert (str(move.source_space), str(move.target_space)) == ("vmem", "hbm")
    assert move.copy.read_from == (6,)
    assert find_copies(plan) == ()


def test_a_leaf_that_is_copied_in_hbm_is_not_in_place(tmp_path: Path) -> None:
    """The same texts with the cache's copy in HBM instead of VMEM."""
    hlo = tpu_texts.HLO.replace(tpu_texts.CACHE_IN_VMEM, tpu_texts.CACHE)
    moved = tpu_texts.ASSIGNMENT.splitlines(keepends=True)
    values = [line for line in moved if "copy-start{0}" in line or "<9 update" in line]
    kept = "".join(line for line in moved if line not in values).rstrip("\n")
    in_hbm = "".join(values).replace("@1", "@0").replace("S(1)", "")
    assignment = (
        kept.replace("size 409600, color 1", "size 278528, color 1").replace(
            "offset=131072", "offset=0"
        )
        + f"\nallocation 8: size 131072, page 0, preallocated-temp:\n{in_hbm}\n"
    )
    plan = read_path(tpu_texts.write_dump(tmp_path, hlo=hlo, assignment=assignment))
    (row,) = donations(program_of(plan=plan, arguments=ARGUMENTS, outputs=OUTPUTS))
    assert row.outcome is DonationOutcome.COPIED
    assert {copy.instruction for copy in row.copies} == {"copy-start", "copy-start.2"}


def test_a_product_is_a_convolution(plan: Plan) -> None:
    (gemm,) = plan.gemms
    assert (gemm.instruction, gemm.backend, gemm.op_name) == (
        "fusion",
        "mxu",
        "jit(step)/dot_general",
    )


def test_a_convolution_of_the_program_is_no_product(tmp_path: Path) -> None:
    hlo = tpu_texts.HLO.replace("/dot_general", "/conv_general_dilated")
    assert read_path(tpu_texts.write_dump(tmp_path, hlo=hlo)).gemms == ()


def test_padding_of_parameters(program: Program) -> None:
    assert parameter_padding_bytes(program.plan) == 278528 - 266240 + 2048


def test_expectations_that_mean_the_same_on_both_vendors(program: Program) -> None:
    expectations = (
        Donated("cache"),
        ParameterBytes(131072 + 266240 + 2048),
        ParameterBytes(131072 + 278528 + 4096, padded=True),
        GemmCount(1, ("cublas", "triton")),
        NoCopyAbove(0),
        TempAtMost(0),
    )
    assert [finding.violations for finding in check_all(expectations, program)] == [()] * 6
    (padded,) = check_all((ParameterBytes(131072 + 266240 + 2048, padded=True),), program)
    assert not padded.holds


def test_an_expectation_for_one_platform(program: Program) -> None:
    never = GemmCount(99)
    assert check_all((replace(never, under="cuda"),), program) == ()
    (finding,) = check_all((replace(never, under="tpu"),), program)
    assert not finding.holds


def test_show_lists_memories_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder), "--all"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"VMEM +409,600 B +409,600 B", out)
    assert re.search(r"HBM +VMEM +278,528 B", out)
    assert "VMEM: preallocated-temp" in out
    assert main(["show", str(folder), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["spaces"]["vmem"]["total_bytes"] == 409600
    assert figures["spaces"]["hbm"]["peak_bytes"] == 447008
    assert figures["live_range_peak_bytes"] is None


def test_show_estimates_the_time_of_a_tpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder), "--time"]) == 0
    # The files of XLA alone do not name the TPU.
    assert "predicted: none" in capsys.readouterr().out
    assert main(["show", str(folder), "--time", "--target", "v6e"]) == 0
    assert "estimated step" in capsys.readouterr().out


def test_a_kernel_for_tpus_is_named_in_its_op_name() -> None:
    call = instruction("custom-call.1", "custom-call", "f32[8]{0:T(128)}", ("x",))
    named = call._replace(custom_call_target="tpu_custom_call", backend_config="{}")
    op_name = "jit(step)/layer/scale_kernel/pallas_call"
    assert named._replace(op_name=op_name).kernel_name == "scale_kernel"
    assert named._replace(op_name="jit(step)/pallas_call").kernel_name is None


def test_a_refused_plan_fails_its_check(plan: Plan) -> None:
    finding = refused_finding("RESOURCE_EXHAUSTED: Ran out of memory on HBM", plan)
    assert not finding.holds
    assert finding.measured == "447,008 B"
    (violation,) = finding.violations
    assert violation.where.endswith("278,528 B")


def test_a_refused_plan_has_no_figures_to_compare_with(plan: Plan) -> None:
    check_memory_analysis(plan, {}, where="dump")
    analysis = {"argument_bytes": 413696, "output_bytes": 163872, "alias_bytes": 131072}
    # libtpu's temp is not a sum of allocations.
    check_memory_analysis(plan, {**analysis, "temp_bytes": 99}, where="dump")
    with pytest.raises(PlanMismatchError, match=r"found 446,496 B"):
        check_memory_analysis(plan, {**analysis, "argument_bytes": 1}, where="dump")


def test_the_report_has_a_section_on_memories(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    html = page.read_text(encoding="utf-8").replace("<wbr>", "")
    section = html.partition('id="memories-')[2].partition("</section>")[0]
    for text in ("VMEM", "copy-start.2", "409,600 B"):
        assert text in section


def test_a_diff_states_the_memory_of_the_chip(program: Program) -> None:
    """A plan for a GPU with the same program has no such memory."""
    module = program.plan.module
    assert module is not None
    plain = parse_hlo(SourceText("plain.txt", re.sub(r":[^{}\s]*\}", "}", tpu_texts.HLO)))
    allocations = tuple(
        replace(allocation, values=()) for allocation in program.plan.device_allocations
    )
    gpu = replace(program, plan=Plan(allocations=allocations, module=plain.module))
    assert (gpu.plan.platform, program.plan.platform) == ("cuda", "tpu")
    assert SpaceChange("vmem", 0, 409600) in compare(gpu, program).changes
    text = compare(gpu, program).sentences().changes[0].text
    assert text == "VMEM memory: 0 B → 409,600 B (+409,600 B), beside the device's"
