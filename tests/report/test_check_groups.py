"""`xlapipe check` prints findings of one cause once, and small copies as a note."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import ROOT
from tests.shared.programs import with_facts
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.expect import Aliased, Donated, Finding, NoCopyAbove, Violation
from xlapipe.plans.donation import SMALL_COPIES, donations, small_copies
from xlapipe.plans.program import Program
from xlapipe.report.findings import finding_lines

RESNET = ROOT / "hlo_dumps" / "resnet50-train" / f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"


@pytest.fixture(scope="module")
def program() -> Program:
    return open_dump(RESNET)


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
    finding = Aliased("state").check(with_facts(program, arguments=tuple(leaves)))
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
    (others,) = [line for line in lines if line.startswith("others")]
    assert others.count("state") == 3 and others.endswith(f" and {count - 4} more")


def test_causes_beyond_the_first_are_counted(program: Program) -> None:
    violations = tuple(
        Violation("no copy", f"{n} B", advice=f"change {'x' * n}", group="copies", size_bytes=n)
        for n in range(1, 14)
    )
    lines = list(finding_lines(Finding("NoCopyAbove(0)", "", "13 copies", violations)))
    assert sum(line.startswith("found") for line in lines) == 10
    assert lines[-2] == "and 3 more, 36 B (--json lists all)"


def test_copies_are_grouped_by_their_line_and_advice(program: Program) -> None:
    finding = NoCopyAbove(0).check(program)
    lines = list(finding_lines(finding))
    groups = {(violation.source, violation.advice) for violation in finding.violations}
    assert len(finding.violations) > len(groups)
    paragraphs = sum(line.startswith("expected") for line in lines)
    assert paragraphs == len(groups)


@pytest.mark.slow
def test_healthy_leaves_are_one_line_and_small_copies_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", str(RESNET)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  donation: "))
    assert lines[start + 1].startswith("    note: 16 small leaves, ")
    assert lines[start + 2].endswith("expectations hold")


def test_a_header_has_one_word_for_the_autotuning_and_all_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path: Path = ROOT / "hlo_dumps" / "qwen3-decode" / f"h200-cublas-jax{GOLDEN_JAXLIB}"
    assert main(["check", str(path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith(": untuned")
    assert second.startswith("  ok ")
    tuned = tmp_path / "tuned"
    shutil.copytree(path.with_name(f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"), tuned)
    manifest = tuned / "manifest.json"
    changed = {**json.loads(manifest.read_text()), "xla_patches": ["instruction-order"]}
    manifest.write_text(json.dumps(changed))
    patched = "XLA was changed in memory to compile as on the device: instruction-order"
    for options in ([], ["--collectives"], ["--time"]):
        assert main(["show", str(tuned), *options]) == 0
        assert patched not in capsys.readouterr().out
    assert main(["show", str(tuned), "--all"]) == 0
    assert patched in capsys.readouterr().out
    assert main(["show", str(path), "--all"]) == 0
    assert "untuned (no autotune results: gemm tiles are XLA's defaults)" in capsys.readouterr().out
    assert main(["show", str(tuned), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["xla_patches"] == ["instruction-order"]
