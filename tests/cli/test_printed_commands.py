"""The commands that screens print work when they are pasted."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import DATA, STEPS
from xlapipe.cli import main
from xlapipe.cli.output import NEXT
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax


def run(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    printed = capfd.readouterr()
    return printed.out + printed.err


def next_command(screen: str) -> list[str]:
    (line,) = [line for line in screen.splitlines() if line.startswith(NEXT)]
    program, *words = shlex.split(line.removeprefix(NEXT))
    assert program == "xlapipe"
    return words


@pytest.mark.parametrize("name", ["named_steps:small", "named_steps:small(rows=8, kind='a b')"])
def test_the_next_commands_from_dump_to_a_line(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    out = str(tmp_path / "my dumps, of a folder whose name is longer than a line of a terminal")
    screen = run(capfd, "dump", name, "--tuning", "none", "--out", out)
    while any(line.startswith(NEXT) for line in screen.splitlines()):
        screen = run(capfd, *next_command(screen))
    assert "named_steps.py:" in screen.splitlines()[0]


def test_the_next_command_of_a_step_that_does_not_fit_names_the_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    name = "named_steps:small(rows=400000)"
    screen = run(capfd, "dump", name, "--tuning", "none", "--out", str(tmp_path))
    command, *words = next_command(run(capfd, *next_command(screen)))
    assert (command, words) == ("choose", [name])
    assert str(find_workload(words[0])) == name


def test_the_next_command_of_a_folder_with_several_modules(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two modules"
    folder.mkdir()
    source = DATA / "jaxlib-0.11.2"
    for number, name in enumerate(("step", "sharded")):
        (module,) = (source / name).glob("**/*after_optimizations.hlo.pb*")
        data = module.read_bytes()
        suffix = "".join(module.suffixes[-1:]) if module.suffix != ".pb" else ""
        stem = f"module_000{number}.jit_{name}.sm_9.0a_gpu_after_optimizations.hlo.pb"
        (folder / f"{stem}{suffix}").write_bytes(data)
    screen = run(capfd, "show", str(folder))
    run(capfd, *next_command(screen))


def test_two_steps_with_one_name_have_two_dumps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    names = ["named_steps:small", "named_steps:small(rows=8)"]
    for name in (*names, *names):
        run(capfd, "dump", name, "--tuning", "none", "--out", str(tmp_path))
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert folders == ["another-name", "another-name-rows=8"]
    error = run(
        capfd, "dump", "named_steps:other", "--tuning", "none", "--out", str(tmp_path), code=2
    )
    assert "holds the dump of named_steps:small, whose workload has the same name" in error
    assert "fix: give one of the workloads another name" in error


def test_a_terminal_breaks_the_next_command_as_a_shell_reads_it(tmp_path: Path) -> None:
    code = (
        "import pty, sys; pty.spawn([sys.executable, '-c', \"import sys; from xlapipe.cli import "
        "output; from rich.text import Text; line = output.NEXT + 'xlapipe show ' + 90 * 'long ';"
        ' output.print_text(line); output.print_lines([Text(line)])"])'
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    printed = re.sub(r"\\\s*\n\s*", "", done.stdout)  # as a shell joins lines
    lines = [line.rstrip() for line in printed.splitlines() if line]
    assert lines == [f"{NEXT}xlapipe show {90 * 'long '}".rstrip()] * 2
