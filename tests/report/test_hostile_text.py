"""Text of a file that reaches a terminal, Markdown or HTML moves no cursor and adds no markup."""

import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import ROOT
from tests.shared.programs import with_facts
from xlapipe import Workload, XlapipeError
from xlapipe.cli import main, output
from xlapipe.compile.reused_compiles import COMPILED_AT
from xlapipe.differences.compare import compare
from xlapipe.dump.dump import open_dump
from xlapipe.expect import Donated, check_all
from xlapipe.files.visible_text import visible_line, visible_lines
from xlapipe.plans.program import Program
from xlapipe.report.changed_dumps import changed_figures, changed_markdown
from xlapipe.report.html_page import render_page
from xlapipe.report.xla_subject import XlaSubject

DUMP = ROOT / f"hlo_dumps/qwen3-step-donated/h200-triton-jax{GOLDEN_JAXLIB}"
HOSTILE = (
    "\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnirts\u2066 \ud800 \r\nok    all hold\x85\u2028"
    "<img src=x onerror=alert(1)> [red]markup[/red] |cell| `code` ```"
)
_ALLOWED_CATEGORIES = {"Cc": "\n\t", "Cf": "", "Cs": "", "Zl": "", "Zp": ""}


def unsafe(text: str) -> list[str]:
    """Characters that a terminal or a reader of Markdown would act on."""
    return [
        character
        for character in text
        if character not in _ALLOWED_CATEGORIES.get(unicodedata.category(character), character)
        and character not in "\u00ad\u200c\u200d"
    ]


def outside_code(text: str) -> str:
    """Markdown without code spans, fenced blocks and escaped characters."""
    text = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = (re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", line) for line in text.splitlines())
    return "\n".join(lines).replace("\\<", "")


def hostile(name: str) -> str:
    return f"{name}{HOSTILE}"


@pytest.fixture(scope="module")
def opened() -> XlaSubject:
    """A plan whose manifest, paths, op_names and instructions hold hostile text."""
    dump = open_dump(DUMP)
    manifest = replace(
        dump.manifest,
        workload=hostile("workload"),
        target_description=hostile("target"),
        arguments=tuple(replace(leaf, path=hostile(leaf.path)) for leaf in dump.manifest.arguments),
        outputs=tuple(replace(leaf, path=hostile(leaf.path)) for leaf in dump.manifest.outputs),
    )
    module = dump.plan.module
    assert module is not None
    computations = {
        name: replace(
            computation,
            instructions=tuple(
                instruction._replace(op_name=hostile(instruction.op_name or "op"))
                for instruction in computation.instructions
            ),
        )
        for name, computation in module.computations.items()
    }
    plan = replace(dump.plan, module=replace(module, computations=computations))
    return XlaSubject(replace(dump, facts=manifest, plan=plan))


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_every_text_becomes_visible(text: str) -> None:
    line = visible_line(text)
    assert len(line) == len(text)
    assert unsafe(line) == []
    assert "\n" not in line
    assert "\t" not in line
    assert unsafe(visible_lines(text)) == []
    assert visible_line(line) == line
    line.encode()


@given(st.text(st.characters(exclude_categories=()), max_size=40))
@settings(max_examples=40, deadline=None)
def test_terminals_get_no_control_characters(text: str) -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
            patch.setenv("TERM", "xterm-256color")
            output.print_lines([Text(text, style="bold"), Text(text)])
        printed = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
        assert unsafe(printed) == []


def test_a_name_that_looks_like_markup_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_lines([Text("[red]not red[/red]"), Text("[bold]x")])
    assert capsys.readouterr().out == "[red]not red[/red]\n[bold]x\n"


def test_show_and_check_and_diff(opened: XlaSubject, capsys: pytest.CaptureFixture[str]) -> None:
    from xlapipe.report.findings import finding_lines

    other = replace(opened, program=with_facts(opened.program, outputs=()))
    difference = compare(opened.program, Program(opened.plan))
    findings = check_all((Donated("nothing"),), other.program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xlapipe.report.subjects.open_path", lambda path: opened.program)
        for options in ((), ("--time",)):
            assert main(["show", str(DUMP), *options]) == 0
        main(["check", str(DUMP)])
    output.print_lines(Text(line) for finding in findings for line in finding_lines(finding))
    output.print_lines(Text(sentence.text) for sentence in difference.sentences().programs)
    assert unsafe(capsys.readouterr().out) == []


def test_a_comment_escapes_the_name_of_a_plan(opened: XlaSubject) -> None:
    dump = changed_figures(hostile("name"), opened, opened)
    text = "\n".join(changed_markdown([dump]))
    assert "<img" not in outside_code(text)
    assert unsafe(text) == []


def test_html(opened: XlaSubject) -> None:
    page = render_page([replace(opened, given_name=hostile("name"))])
    assert "<img src=x" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize("character", ["\x7f", "\x9b", "\u202e", "\u2066", "\u2028"])
def test_json_escapes_what_a_terminal_obeys(
    character: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.print_json({"config": f"é{character}"})
    printed = capsys.readouterr().out
    assert unsafe(printed) == []
    assert json.loads(printed) == {"config": f"é{character}"}
    output.print_json({"time": "3 µs"})
    assert capsys.readouterr().out == '{"time": "3 µs"}\n'


def test_json_with_lone_surrogates_and_without_utf_8(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.print_json({"name": "\ud800 é"})
    assert json.loads(capsys.readouterr().out) == {"name": "\ud800 é"}
    with pytest.raises(ValueError, match="Out of range"):
        output.print_json({"seconds": float("nan")})


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[bytes]":
    environment = {**os.environ, **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "xlapipe", *arguments],
        cwd=ROOT,
        env=environment,
        check=False,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [("show", "--all"), ("show", "--json")])
def test_other_encodings(encoding: str, command: tuple[str, ...]) -> None:
    ended = run(*command, str(DUMP), env={"PYTHONIOENCODING": encoding}, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""
    if "--json" in command:
        json.loads(ended.stdout.decode(encoding))


def test_a_full_disk_is_one_error() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = run("show", str(DUMP), stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 2
    assert ended.stderr.decode().splitlines() == [
        "xlapipe: error: the output cannot be written: No space left on device"
    ]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(closed: str) -> None:
    command = f"exec {sys.executable} -m xlapipe show {DUMP} {closed}"
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_long_name_of_a_workload_is_refused() -> None:
    with pytest.raises(XlapipeError, match=r"at most 200.*fix: name='aaa"):
        Workload(name="a" * 300, fn=len, args=())


def test_errors_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "missing\x1b[2J"]) == 2
    assert unsafe(capsys.readouterr().err) == []


def test_notes_on_compiles_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """The date of a cache's entry was printed as it was."""
    COMPILED_AT.append(HOSTILE)
    output.print_notes_on_compiles()
    assert unsafe(capsys.readouterr().err) == []
