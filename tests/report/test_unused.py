"""Warnings of arguments that nothing reads, and of outputs that depend on no argument."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.programs import with_facts
from tests.shared.reports import Page
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.expect.unused import unused_findings
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program
from xlapipe.report.html_page import render_page
from xlapipe.report.subjects import ShowOptions
from xlapipe.report.xla_subject import XlaSubject

GOLDEN = (
    Path(__file__).resolve().parents[2] / f"hlo_dumps/qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}"
)
UNREAD = ArgumentLeaf("key", (2,), "uint32", 8, False, None)
CONSTANT = OutputLeaf("mask", (4,), "bool", 4, 0, constant=True)
COMPUTED = OutputLeaf("loss", (), "float32", 4, 1)


@pytest.fixture(scope="module")
def program() -> Program:
    return open_dump(GOLDEN)


def test_a_program_that_uses_all_has_no_warning(program: Program) -> None:
    assert unused_findings(program) == ()


def test_an_argument_that_nothing_reads(program: Program) -> None:
    (finding,) = unused_findings(with_facts(program, arguments=(*program.arguments, UNREAD)))
    assert finding.is_warning
    assert finding.holds
    assert finding.measured == f"1 of {len(program.arguments) + 1} are not"
    assert [violation.where for violation in finding.violations] == ["key"]


def test_an_output_that_depends_on_no_argument(program: Program) -> None:
    (finding,) = unused_findings(with_facts(program, outputs=(CONSTANT, COMPUTED)))
    assert finding.measured == "1 of 2 depend on none"
    assert finding.violations[0].size_bytes == 4


def test_a_program_without_an_output_of_its_arguments(program: Program) -> None:
    (finding,) = unused_findings(with_facts(program, outputs=(CONSTANT,)))
    assert finding.expectation == "the outputs depend on the arguments"
    assert finding.measured == "1 output, and none depends on an argument"
    assert finding.violations[0].where == "mask"
    five = tuple(replace(CONSTANT, path=f"mask[{index}]", index=index) for index in range(5))
    (finding,) = unused_findings(with_facts(program, outputs=five))
    assert finding.measured == "5 outputs, and none depends on an argument"
    assert finding.violations[0].where == "mask[0], mask[1], mask[2], mask[3]"


def test_check_prints_warnings_and_does_not_fail(
    program: Program, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = open_dump(GOLDEN)
    unread = tuple(replace(UNREAD, path=f"state[{number}]") for number in range(3))
    manifest = replace(dump.manifest, arguments=(*dump.manifest.arguments, *unread))
    opened = replace(dump, facts=manifest)
    monkeypatch.setattr("xlapipe.inductor.open_path.open_dump", lambda path: opened)
    assert main(["check", str(GOLDEN)]) == 0
    text = capsys.readouterr().out
    assert "warn  every argument is read: 3 of" in text
    assert "3 arguments, 24 B" in text
    assert "note: 3 arguments" not in text


def test_every_display_has_the_notes_on_the_step() -> None:
    dump = open_dump(GOLDEN)
    constant, *computed = dump.manifest.outputs
    manifest = replace(
        dump.manifest,
        arguments=(*dump.manifest.arguments, UNREAD),
        outputs=(replace(constant, constant=True), *computed),
        dropped_updates=("state.step",),
        asked_early=("jax.default_backend() at step.py:4 (cpu)",),
    )
    opened = XlaSubject(replace(dump, facts=manifest))
    notes = manifest.notes_on_step
    assert len(notes) == 4
    for options in (ShowOptions(width=200), ShowOptions(everything=True)):
        shown = "\n".join(map(str, opened.lines(options)))
        assert all(note in shown for note in notes), shown
    assert set(notes) <= set(opened.figures(ShowOptions())["notes"])
    page = Page(render_page([opened])).text
    assert all(note in page for note in notes)
