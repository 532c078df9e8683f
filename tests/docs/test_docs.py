"""The documentation names what exists: paths, definitions, commands, flags, and printed output."""

import argparse
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests import figures
from xlapipe import expect
from xlapipe.cli import _parser, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
WIDEST_README_LINE = 100

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`([^`]+)`")
_FOLDERS = "xlapipe|models|tests|docs|examples|requirements|\\.ci|hlo_dumps"
_PATH = re.compile(rf"(?<![\w/.<>-])(?:{_FOLDERS})/[\w./*-]*[\w*/]")
# "`find_gemms` in `xlapipe/plans/gemms.py`", and several names before one file.
_DEFINED_IN = re.compile(r"((?:`\w+`(?:, | and )?)+) in `([\w./-]+\.py)`")
# Folders that a user's own commands write.
_OF_USERS = re.compile(r"hlo_dumps/(my-step|classifier|<)|hlo_dumps/$")


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the lines that the page shows below it."""

    line: str
    output: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def fenced(text: str, language: str) -> Iterator[str]:
    for match in _FENCE.finditer(text):
        if match[2] == language:
            indent = len(match[1])
            yield "\n".join(line[indent:] for line in match[3].splitlines())


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def commands(page: Path) -> Iterator[Command]:
    for block in fenced(page.read_text(encoding="utf-8"), "console"):
        for part in re.split(r"^(?:host\d)?\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, rest = re.sub(r"\\\n *", "", part).partition("\n")
            yield Command(line, tuple(rest.rstrip("\n").splitlines()))


def spans(page: Path) -> list[str]:
    text = re.sub(r"\s*\n\s*", " ", prose(page.read_text(encoding="utf-8")))
    return [span.replace("\\|", "|") for span in _CODE_SPAN.findall(text)]


def invocations(page: Path) -> Iterator[list[str]]:
    """Words of everything that a reader may type, in console blocks and in the text."""
    for command in commands(page):
        yield command.words
    for span in spans(page):
        with contextlib.suppress(ValueError):  # an apostrophe in what is not a command
            yield shlex.split(span, comments=True)


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the command line."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
    return code, output.getvalue()


@cache
def command_help(*command: str) -> str:
    return run(*command, "--help")[1]


@cache
def command_names(*group: str) -> frozenset[str]:
    text = command_help(*group)
    return frozenset(re.findall(r"^    (\w[\w-]*)(?: |$)", text, re.MULTILINE))


@cache
def command_flags(*command: str) -> frozenset[str]:
    """All flags, also those that `--help` does not list."""
    parser: argparse.ArgumentParser = _parser(command)
    for name in command:
        (choices,) = (
            action.choices
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        parser = choices[name]
    return frozenset(flag for action in parser._actions for flag in action.option_strings)


def xlapipe_calls(words: list[str]) -> Iterator[list[str]]:
    """The arguments of each `xlapipe` among the words: `launch` runs another one."""
    starts = [index for index, word in enumerate(words) if word == "xlapipe"]
    for start, end in pairwise([*starts, len(words)]):
        if start == 0 or words[start - 1] in ("--", "do"):
            yield words[start + 1 : end]


@each_page
def test_paths_exist(page: Path) -> None:
    texts = [*spans(page), *(command.line for command in commands(page))]
    named = {path for text in texts for path in _PATH.findall(text)}
    missing = [
        path
        for path in sorted(named)
        if not _OF_USERS.match(path) and not any(ROOT.glob(path.rstrip("/")))
    ]
    assert missing == []


def defines(file: Path, name: str) -> bool:
    """Whether a function, class, field or constant of that name is in a file."""
    if not file.is_file():
        return False
    defined = rf"^ *(?:(?:def|class) {name}\b|{name}\b[^=\n(]*[=:])"
    return re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE) is not None


@each_page
def test_definitions_are_in_the_named_files(page: Path) -> None:
    text = re.sub(r"\s*\n\s*", " ", prose(page.read_text(encoding="utf-8")))
    missing = [
        f"{name} in {file}"
        for names, file in _DEFINED_IN.findall(text)
        for name in re.findall(r"\w+", names.replace(" and ", " "))
        if not defines(ROOT / file, name)
    ]
    assert missing == []


@each_page
def test_named_tests_exist(page: Path) -> None:
    names = {span for span in spans(page) if re.fullmatch(r"test_\w+", span)}
    files = list((ROOT / "tests").rglob("test_*.py"))
    missing = [name for name in sorted(names) if not any(defines(file, name) for file in files)]
    assert missing == []


@each_page
def test_commands_and_flags_exist(page: Path) -> None:
    for words in invocations(page):
        for call in xlapipe_calls(words):
            command = call[:2] if call[:1] == ["device"] else call[:1]
            if not command or not command[-1][:1].islower():
                continue  # `xlapipe COMMAND --help`
            assert command[-1] in command_names(*command[:-1]), " ".join(words)
            for flag in (word.partition("=")[0] for word in call if word.startswith("--")):
                assert flag == "--" or flag in command_flags(*command), " ".join(words)


@each_page
def test_make_targets_and_pytest_options_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    plugin = (ROOT / "xlapipe/api/testing/pytest_plugin.py").read_text(encoding="utf-8")
    for words in invocations(page):
        if words[:1] == ["make"] and len(words) > 1:
            assert words[1] in targets, " ".join(words)
        for word in words:
            if word.startswith("--xlapipe-"):
                assert f'"{word}"' in plugin, word


def reading_commands() -> Iterator[tuple[Path, Command]]:
    """Commands whose output a page shows, and which only read files of the repository."""
    for page in PAGES:
        for command in commands(page):
            call = command.words[1:]
            reads = command.words[:1] == ["xlapipe"] and call[0] in ("show", "diff", "check")
            if reads and command.output and all((ROOT / word).exists() for word in call[1:]):
                yield page, command


def matches(printed: list[str], shown: tuple[str, ...]) -> bool:
    """Whether `shown` is `printed`, where a line `…` stands for any number of lines."""
    if not shown:
        return not printed
    if shown[0].strip() == "…":
        return any(matches(printed[skip:], shown[1:]) for skip in range(len(printed) + 1))
    return bool(printed) and printed[0] == shown[0] and matches(printed[1:], shown[1:])


def test_there_is_output_to_compare() -> None:
    assert len(list(reading_commands())) >= 1


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*case, id=case[1].line) for case in reading_commands()]
)
def test_output_is_what_is_printed(
    page: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, printed = run(*command.words[1:])
    lines = [line.rstrip() for line in printed.splitlines()]
    assert matches(lines, command.output), f"{page_name(page)} shows other output than:\n{printed}"


def test_the_example_of_reading_dumps_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = fenced((ROOT / "docs/api/dumps.md").read_text(encoding="utf-8"), "python")
    exec(compile(example, "docs/api/dumps.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "B of temp" in printed
    assert "cache[0]['k'] aliased out['cache'][0]['k']" in printed


def test_readme_fits_a_terminal() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDEST_README_LINE] == []


def test_architecture_lists_the_layers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    layers = [re.split(r"\s*\|\s*", layer) for layer in contract["layers"]]
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [A-Z]", text, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(listed) == sorted(name for layer in layers for name in layer)
    floor = {name: number for number, layer in enumerate(layers) for name in layer}
    assert [floor[name] for name in listed] == sorted(floor[name] for name in listed)


def test_every_expectation_is_in_the_vocabulary() -> None:
    guides = [ROOT / "docs/expectations.md", ROOT / "docs/collectives.md"]
    text = "".join(guide.read_text(encoding="utf-8") for guide in guides)
    classes = [
        name
        for name in expect.__all__
        if isinstance(cls := getattr(expect, name), type) and issubclass(cls, expect.Expectation)
    ]
    assert [name for name in classes if f"#xlapipe.expect.{name})" not in text] == []


def test_reference_dumps_have_the_names_that_are_defined() -> None:
    page = (ROOT / "docs/lab/seeds.md").read_text(encoding="utf-8")
    defined = set(re.findall(r"^\| \*\*(reference dump \d{3})\*\* \|", page, re.MULTILINE))
    sources = [path for folder in ("xlapipe", "models") for path in (ROOT / folder).rglob("*.py")]
    used = {
        " ".join(name.lower().split())
        for path in sources
        for name in re.findall(
            r"(?:\w+[\s#]+)?dump \d{3}\b", path.read_text(encoding="utf-8"), re.I
        )
    }
    assert len(defined) == 5
    assert used
    assert used <= defined


def test_the_tables_of_figures_are_those_of_the_records() -> None:
    """All but predicted times, which take minutes: `python -m tests.figures --time`."""
    text = figures.PAGE.read_text(encoding="utf-8")
    assert figures.page(text, times=False) == text
