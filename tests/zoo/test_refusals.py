"""What cannot be compiled as it would run is refused: with the place, the cause and the fix."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.zoo.refused import REFUSALS
from xlapipe.cli import main

STEPS = Path(__file__).with_name("refused.py").resolve()
SOURCES = Path(__file__).resolve().parents[2] / "xlapipe"

# Refusals that no row gives, by a part of their text, and why.
WITHOUT_ROW = {
    "which refuses to plan another program": "a bug of xlapipe: test_carried.py gives each",
    "the step calls a Pallas kernel": "for TPUs: tests/tpu/test_bad_input.py",
    "its donation cannot be changed from outside": "of `choose`: test_remedies.py",
    "its function has no integer argument": "of `choose`: test_remedies.py",
    ": expected an integer `": "of `choose`: test_remedies.py",
    "it has a mesh already": "of `choose`: test_remedies.py",
    "no dimension of its arguments is divisible": "of `choose`: test_remedies.py",
    "leaves to shard are not": "of `choose`: test_remedies.py",
    "was not applied: no such call": "of `choose`: tests/search/test_choose_remat.py",
    "leave out this form": "of `choose`: tests/search/test_forms.py",
    "arguments by keyword get no in_specs": "of `choose`: tests/search/test_replicated.py",
    "out_specs has no one spec for": "of `choose`: tests/search/test_replicated.py",
    "its outputs cannot be changed": "of `choose`: tests/search/test_small_remedies.py",
    "jax_remat3 is on": "of `choose`: tests/search/test_saved.py",
    "carry names": "of `carry=`: tests/compile/test_second_call.py",
}

FIXED = [row for row, refusal in REFUSALS.items() if refusal.fixed is not None]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The message of each refusal, by row; nothing is written."""
    out = tmp_path_factory.mktemp("refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent)
        messages = {
            row: error for rows in _together() for row, error in _errors(rows, out / "dumps")
        }
    assert not (out / "dumps").exists()
    return messages


def _together() -> Iterator[list[str]]:
    """Rows that one command dumps: those without options or a reference, and each other one."""
    plain = [row for row, item in REFUSALS.items() if not item.options and not item.reference]
    yield plain
    yield from ([row] for row in REFUSALS if row not in plain)


def _errors(rows: list[str], out: Path) -> Iterator[tuple[str, str]]:
    """Each row with its error; of several, each error starts with a workload's reference."""
    references = [REFUSALS[row].reference or f"refused:refused(row={row!r})" for row in rows]
    code, answer = _dump([*references, *REFUSALS[rows[0]].options], out)
    assert code == 2, rows
    errors = [str(error) for error in answer["errors"]]
    assert len(errors) == len(rows)
    for row, reference in zip(rows, references, strict=True):
        (error,) = (text for text in errors if len(rows) == 1 or text.startswith(f"{reference}: "))
        yield row, error


def _dump(arguments: list[str], out: Path) -> tuple[int, Mapping[str, list[object]]]:
    text = StringIO()
    with redirect_stdout(text), redirect_stderr(StringIO()):
        code = main(["dump", *arguments, "--out", str(out), "--json"])
    answer: Mapping[str, list[object]] = json.loads(text.getvalue())
    return code, answer


@pytest.mark.parametrize("row", REFUSALS)
def test_refusal_states_place_cause_and_fix(row: str, errors: Mapping[str, str]) -> None:
    refusal, error = REFUSALS[row], errors[row]
    where, cause, fix = refusal.message.split(" … ")
    assert any(where in text for text in (error, *_named_lines(error))), error
    assert cause in error, error
    assert fix in error.partition("; fix: ")[2], error
    assert "Traceback" not in error


def _named_lines(error: str) -> list[str]:
    lines = STEPS.read_text(encoding="utf-8").splitlines()
    return [lines[int(number) - 1] for number in re.findall(rf"{STEPS}:(\d+)", error)]


@pytest.fixture(scope="module")
def errors_of_fixed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """Errors of the step that follows the fix, by row; one command dumps those of equal options.

    A step without an error has one dump.
    """
    by_options: dict[tuple[str, ...], list[str]] = {}
    for row in FIXED:
        by_options.setdefault(tuple(REFUSALS[row].options), []).append(row)
    errors: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent)
        for number, (options, rows) in enumerate(by_options.items()):
            references = {row: f"refused:fixed(row={row!r})" for row in rows}
            out = tmp_path_factory.mktemp(f"fixed_{number}") / "dumps"
            code, answer = _dump([*references.values(), *options], out)
            assert code == (2 if answer["errors"] else 0)
            texts = list(map(str, answer["errors"]))
            for row, reference in references.items():
                errors[row] = [text for text in texts if text.startswith(reference)]
            assert sum(len(errors[row]) for row in rows) == len(texts), texts
            folders = {dump["path"] for dump in answer["dumps"]}  # type: ignore[index]
            assert len(folders) == len(answer["dumps"]) == len(rows) - len(texts)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("row", FIXED)
def test_the_step_that_follows_the_fix_compiles(
    row: str, errors_of_fixed: Mapping[str, list[str]]
) -> None:
    assert errors_of_fixed[row] == []


def _raised(*packages: str) -> Iterator[tuple[str, ast.expr]]:
    """Where errors of users are raised or returned, and their messages."""
    for path in sorted(path for package in packages for path in (SOURCES / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[message]) if name in (
                    *("CompileError", "ParameterError", "TargetError"),
                    *("WorkloadError", "XlapipeError"),
                ):
                    yield f"{path.relative_to(SOURCES)}:{node.lineno}", message


def _constants(message: ast.expr) -> list[str]:
    return [
        node.value
        for node in (message.values if isinstance(message, ast.JoinedStr) else [message])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _names(message: ast.expr) -> set[str]:
    """What an f-string is filled with."""
    parts = message.values if isinstance(message, ast.JoinedStr) else []
    return {ast.unparse(part.value) for part in parts if isinstance(part, ast.FormattedValue)}


def test_every_refusal_of_lowering_has_a_row(errors: Mapping[str, str]) -> None:
    missing = []
    for place, message in _raised("compile/lowering"):
        text = ".*".join(map(re.escape, _constants(message)))
        if not any(re.search(text, error, re.DOTALL) for error in errors.values()):
            missing.append((place, ".*".join(_constants(message))))
    unknown = [item for item in missing if not any(part in item[1] for part in WITHOUT_ROW)]
    assert unknown == []
    assert all(any(part in text for _, text in missing) for part in WITHOUT_ROW)


# What messages are filled with that has a fix.
_WITH_FIX = {"fix", "_FIX", "leave_out", "check.problem", "_import_fix(error, module)"}


def test_every_refusal_of_a_compile_states_a_fix() -> None:
    without = [
        place
        for place, message in _raised("compile", "workload.py")
        if isinstance(message, (ast.JoinedStr, ast.Constant))
        and "fix: " not in "".join(_constants(message))
        and not _names(message) & _WITH_FIX
        and _constants(message) != ["interrupted"]
    ]
    assert without == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("prints", "the step calls back into Python on the host (refused.py:"),
        ("attends_with_cudnn", "the step calls cuDNN attention (refused.py:"),
        ("convolves", "1 convolution of cuDNN without an algorithm (first at refused.py:"),
    ],
)
def test_build_refuses_what_another_process_could_not_run(
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    command = ["build", f"refused:{name}", "--target", "h200", "--out", str(tmp_path / "o")]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert f"{name}: {reason}" in message
    assert "fix: " in message
    assert not (tmp_path / "o").exists()
