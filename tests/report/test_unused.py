"""Notes on arguments that nothing reads, and on outputs that depend on no argument."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.reports import Page
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.report.html_page import render_page
from xlapipe.report.subjects import ShowOptions
from xlapipe.report.xla_subject import XlaSubject

GOLDEN = (
    Path(__file__).resolve().parents[2] / f"hlo_dumps/qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}"
)
UNREAD = ArgumentLeaf("key", (2,), "uint32", 8, False, None)


def test_check_prints_notes_and_does_not_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = open_dump(GOLDEN)
    unread = tuple(replace(UNREAD, path=f"state[{number}]") for number in range(3))
    manifest = replace(dump.manifest, arguments=(*dump.manifest.arguments, *unread))
    opened = replace(dump, facts=manifest)
    monkeypatch.setattr("xlapipe.inductor.open_path.open_dump", lambda path: opened)
    assert main(["check", str(GOLDEN)]) == 0
    text = capsys.readouterr().out
    assert "note: 3 arguments not used by the program: state[0], state[1], state[2]" in text


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
