"""Help, versions, completion and answers to misspelled words of the command line."""

import re
import subprocess
import sys

import pytest

import xlapipe
from xlapipe.cli import _COMMANDS, _REMOVED, main


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + printed.err


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "--version") == (0, f"xlapipe {xlapipe.__version__}\n")


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_help_has_two_examples_and_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, text = answer(capsys, *command.split(), "--help")
    assert code == 0
    examples = text.partition("examples:\n")[2].splitlines()
    commands = [line for line in examples if not line.startswith("      ")]
    assert len(commands) == 2 and all(line[2:4] in ("xl", "py", "ev") for line in commands)
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert len(re.findall(r"^  --", text, re.MULTILINE)) <= 15


@pytest.mark.parametrize("command", _REMOVED)
def test_a_removed_command_names_what_replaces_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "gpt:workload", "--json"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"xlapipe: error: `xlapipe {command}` was removed; fix: ")


def test_python_m_xlapipe_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xlapipe", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"xlapipe {xlapipe.__version__}\n"


def test_an_argument_that_may_be_left_out_is_not_required(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["show"])
    assert capsys.readouterr().err.endswith("the following arguments are required: PATH\n")
