"""`xlapipe check` prints findings of one cause once, and small copies as a note."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.reading.dumps import ROOT
from xlapipe.cli import main
from xlapipe.dumps.dump import open_dump
from xlapipe.expect import Aliased, Donated, NoCopyAbove
from xlapipe.plans.donation import SMALL_COPIES, donations, small_copies
from xlapipe.plans.program import Program
from xlapipe.report.findings import finding_lines

RESNET = ROOT / "hlo_dumps" / "resnet50-train" / "h200-auto-tuned-jax0.11.2"


@pytest.fixture(scope="module")
def program() -> Program:
    return open_dump(RESNET).program


def test_small_copies_are_permitted_by_default_and_stated(program: Program) -> None:
    rows = donations(program)
    small = small_copies(rows)
    assert small and all(row.copies for row in small)
    total = sum(row.size_bytes for row in rows)
    copied = sum(copy.copied_bytes for row in small for copy in row.copies)
    assert copied <= total // SMALL_COPIES
    default = Donated("state").check(program)
    assert default.holds
    size = sum(row.size_bytes for row in small)
    assert f"{len(small)} small leaves in place and copied, {size:,} B" in default.measured
    strict = Donated("state", copies_up_to_bytes=0).check(program)
    assert len(strict.violations) == len(small)


def test_a_larger_copy_is_not_small(program: Program) -> None:
    small = small_copies(donations(program))
    (only,) = [row for row in small if row is small[-1]]
    assert small_copies([only]) == ()


def test_leaves_of_one_cause_are_one_paragraph(program: Program) -> None:
    leaves = [replace(leaf, donated=False) for leaf in program.arguments]
    finding = Aliased("state").check(replace(program, arguments=tuple(leaves)))
    lines = list(finding_lines(finding))
    count, total = len(finding.violations), sum(leaf.size_bytes for leaf in leaves[:1])
    named = [leaf for leaf in leaves if leaf.path.startswith("state")]
    total = sum(leaf.size_bytes for leaf in named)
    assert count == len(named) > 100
    assert lines[0].startswith(f"{count} leaves of 'state', not donated, ")
    assert f"({total:,} B): add the argument 'state' to donate_argnums" in lines[0]
    assert sum(line.startswith("expected") for line in lines) == 1
    largest = max(leaf.size_bytes for leaf in named)
    assert f"{largest:,} B" in lines[1]


def test_copies_are_grouped_by_their_line(program: Program) -> None:
    finding = NoCopyAbove(0).check(program)
    lines = list(finding_lines(finding))
    lines_of_copies = {violation.source for violation in finding.violations}
    assert len(finding.violations) > len(lines_of_copies)
    paragraphs = sum(line.startswith("expected") for line in lines)
    assert paragraphs == len(lines_of_copies)


def test_healthy_leaves_are_one_line_and_small_copies_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", str(RESNET)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  donation: "))
    assert lines[start + 1].startswith("    note: 16 small leaves, ")
    assert lines[start + 2].endswith("expectations hold")


def test_an_untuned_plan_has_its_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    path: Path = ROOT / "hlo_dumps" / "qwen3-decode" / "h200-cublas-jax0.11.2"
    assert main(["check", str(path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "untuned" in first
    assert second == "  to tune: xlapipe dump WORKLOAD --target attached --tune, on the GPU"
