"""On a terminal, no line is wider than it, and no name is broken where it would fit on a line."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import DATA
from tests.shared.dumps import each_opened_once
from xlapipe.cli import main
from xlapipe.report.wrapped_text import folded, wrapped

GOLDENS = Path(__file__).resolve().parents[2] / "hlo_dumps"
STEP = GOLDENS / f"qwen3-step/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
DONATED = GOLDENS / f"qwen3-step-donated/h200-cublas-jax{GOLDEN_JAXLIB}"
SEVERAL = GOLDENS / f"fsdp-mlp/h200-1x2-cublas-jax{GOLDEN_JAXLIB}"
LONG_NAMES = GOLDENS / f"qwen3-train/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}"
LOG = DATA / "failures/arguments_too_large.log"
COMMANDS = [
    ("show", STEP),
    ("show", LONG_NAMES),
    ("show", LONG_NAMES, "--all"),
    ("show", SEVERAL, "--all", "--time"),
    ("show", STEP, "--time", "--why", "gemm_fusion_dot.2"),
    ("show", STEP, "reference.py:139"),
    ("show", LONG_NAMES, "state"),
    ("check", STEP, SEVERAL),
    ("check", LONG_NAMES),
    ("diff", STEP, DONATED),
    ("explain", LOG),
    ("explain", LOG, "--plan", STEP),
    ("list",),
    ("targets",),
    ("doctor",),
    ("show", STEP, "--gems"),
    ("show", STEP, "--color", "red"),
    ("check", "/nowhere/" + "folder/" * 12 + "dump"),
]
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SHORTEST_NAME = 8


class Terminal(io.StringIO):
    """Standard output or error that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def printed(
    columns: int, command: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What a command prints on a terminal of so many columns, without styles."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out, err = Terminal(), Terminal()
    with redirect_stdout(out), redirect_stderr(err), suppress(SystemExit):  # of a wrong option
        main(list(map(str, command)))
    return _STYLE.sub("", out.getvalue() + err.getvalue()).split("\n")


@pytest.fixture(scope="module", autouse=True)
def shared_dumps() -> Iterator[None]:
    """Commands of the same dump at each width differ in what they print alone."""
    with each_opened_once():
        yield


def broken_names(lines: list[str], whole: set[str], columns: int) -> list[str]:
    """Names of `whole` that are cut between two lines, though each would fit on one."""
    cut = []
    for line, following in pairwise(lines):
        if not line.strip() or not following.strip():
            continue
        before, after = line.split()[-1], following.split()[0]
        name = before + after
        if name in whole and before not in whole and len(name) <= columns - 2:
            cut.append(name)
    return cut


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command))[-50:])
def test_no_line_is_wider_and_no_name_is_broken(
    command: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = printed(1000, command, monkeypatch)
    words = {word for line in wide for word in line.split()}
    names = {word for word in words if len(word) >= _SHORTEST_NAME and re.search("[a-z]", word)}
    assert len(names) > 3
    for columns in (80, 60):
        lines = printed(columns, command, monkeypatch)
        # A path of a command that is to be pasted is not broken.
        lines = [line for line in lines if len(max(line.split(), key=len, default="")) < 50]
        assert [line for line in lines if len(line) > columns] == []
        assert broken_names(lines, names, columns) == []


def test_a_command_to_paste_goes_on_after_a_backslash(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(80, ("show", DONATED), monkeypatch)
    start = next(at for at, line in enumerate(lines) if line.startswith("Next: "))
    *parts, last = lines[start : lines.index("", start)]
    assert parts and all(part.endswith(" \\") for part in parts)
    assert max(map(len, parts)) <= 80
    words = " ".join(part.removesuffix("\\") for part in (*parts, last)).split()
    assert words[:4] == ["Next:", "xlapipe", "show", str(DONATED)] and len(words) == 5


def test_a_cut_name_is_found() -> None:
    whole = {"layers/attention.py:70", "read", "at"}
    assert broken_names(["read at layers/", "    attention.py:70"], whole, 40) == [
        "layers/attention.py:70"
    ]
    assert broken_names(["read at", "  layers/attention.py:70"], whole, 40) == []


@pytest.mark.parametrize("width", [20, 60, 80])
def test_folded_lines_hold_every_word_once(width: int) -> None:
    line = "   12  f32[8,1024]  saved for the backward pass of models/qwen3/modules/attention.py:70"
    parts = list(folded(line, width))
    assert max(map(len, parts)) <= width
    assert "".join("".join(parts).split()) == "".join(line.split())


def test_a_name_longer_than_a_line_is_broken_at_its_parts() -> None:
    assert list(wrapped("at state['optimizer'][0].trace", 20)) == [
        "at state[",
        "'optimizer'][",
        "0].trace",
    ]
    assert all(len(part) <= 20 for part in wrapped("x" * 90, 20))
