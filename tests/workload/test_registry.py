"""Workloads by name, optionally followed by arguments."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import WorkloadReference, find_workload, registered_workloads
from xlapipe.search.memory_budget import memory_budget


def test_a_registered_name_with_arguments() -> None:
    plain = find_workload("qwen3-decode")
    reference = find_workload("qwen3-decode(layers=28, batch=4)")
    assert plain.arguments is None
    assert reference.arguments == {"layers": 28, "batch": 4}
    assert (reference.target, reference.folder) == (plain.target, plain.folder)
    assert reference.name == "qwen3-decode(layers=28, batch=4)"
    assert str(reference) == f"{plain.target}(layers=28, batch=4)"


def test_a_module_with_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    reference = find_workload("mine.steps:decode(config='a (b): c', dims=(1, 2))")
    assert reference.target == "mine.steps:decode"
    assert reference.folder == tmp_path
    assert reference.arguments == {"config": "a (b): c", "dims": (1, 2)}
    assert str(reference) == reference.name


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("a:b", None),
        ("a:b()", {}),
        ("a:b(x=-1, y=None, z=[1.5, 'q'])", {"x": -1, "y": None, "z": [1.5, "q"]}),
    ],
)
def test_arguments_are_literals(text: str, arguments: Any) -> None:
    assert find_workload(text).arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "(28)",
        "(layers=28",
        "(layers=28))",
        "(layers=n)",
        "(layers=open('x'))",
        "(**{'layers': 28})",
        "(layers=28)(batch=1)",
        "(layers=28) + f()",
        "(layers=1, layers=2)",
        "(layers=28).name",
        "(" * 2000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="arguments must be keyword literals"):
        find_workload(f"qwen3-decode{text}")


def test_an_argument_that_is_a_name_is_printed() -> None:
    with pytest.raises(WorkloadError, match="four is not a literal; fix: put a string in quotes"):
        find_workload("qwen3-decode(batch=four)")


def test_an_unknown_name_with_arguments() -> None:
    with pytest.raises(WorkloadError, match=r"unknown workload .* did you mean qwen3-decode"):
        find_workload("qwen3-decod(layers=28)")


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        {},
        {"dims": (1, (2,)), "names": {"a"}, "none": set(), "raw": b"\xff\0"},
        {"text": "a 'b'\n\udc80", "number": -1.5e300, "both": 1 + 2j, "map": {1: [True, None]}},
    ],
)
def test_every_literal_reaches_the_child_with_its_type(arguments: Any) -> None:
    reference = WorkloadReference("name", "a:b", arguments, Path("/some/folder"))
    copy = WorkloadReference.from_json(json.loads(json.dumps(reference.to_json())))
    assert copy == reference
    assert repr(copy.arguments) == repr(reference.arguments)


@pytest.mark.parametrize("value", [float("inf"), Path("x"), [object()], ...])
def test_a_value_that_is_not_a_literal_is_refused(value: Any) -> None:
    with pytest.raises(
        WorkloadError, match=r"workload name: argument x=.* is not a Python literal"
    ):
        WorkloadReference("name", "a:b", {"x": value})


def test_new_arguments_are_part_of_the_name() -> None:
    reference = find_workload("a:b(x=1)").with_arguments({"x": 2, "y": "z"})
    assert (reference.name, reference.target) == ("a:b(x=2, y='z')", "a:b")
    assert reference.with_arguments({}) == find_workload("a:b")


def write_project(folder: Path, table: str) -> Path:
    """A pyproject.toml with other tools' tables around `table`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyproject.toml"
    file.write_text(f"[tool.other]\nxlapipe = 1\n\n{table}\n\n[tool.last]\n", encoding="utf-8")
    return file


TABLE = """
[tool.xlapipe.workloads]
step = "steps.decode:workload"
"other.step" = "steps:make.other"
"""


@pytest.mark.parametrize("below", [".", "steps", "steps/deeper"])
def test_a_projects_workloads_are_found_from_its_folders(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, TABLE)
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / below)
    assert registered_workloads() == (
        WorkloadReference("other.step", "steps:make.other", folder=tmp_path),
        WorkloadReference("step", "steps.decode:workload", folder=tmp_path),
    )
    reference = find_workload("step(layers=2)")
    assert reference == WorkloadReference(
        "step(layers=2)", "steps.decode:workload", {"layers": 2}, tmp_path
    )


def test_a_file_instead_of_a_module_is_refused_with_the_modules_name() -> None:
    with pytest.raises(WorkloadError, match=r"step\.py is a file, .*; fix: step:workload$"):
        find_workload("step.py:workload")


@pytest.mark.parametrize("command", ["dump", "check", "show", "choose"])
def test_a_python_file_is_refused_with_the_modules_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """`dump gpt.py` said to install flatbuffers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt.py").write_text("raise SystemExit\n")
    assert main([command, "gpt.py"]) == 2
    assert "gpt.py: is a Python file" in (error := capsys.readouterr().err)
    assert "fix: gpt:NAME, where NAME is that of a Workload in it" in error


@pytest.mark.parametrize("name", ["step", "step(layers=2)", "steps:workload"])
def test_a_workload_where_a_dump_is_expected_is_refused_with_its_dump(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, TABLE)
    monkeypatch.chdir(tmp_path)
    assert main(["show", name]) == 2
    assert "found the name of a workload; fix: give the folder that" in capsys.readouterr().err


def test_the_nearest_table_is_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearer pyproject.toml without a table, or one that has no xlapipe in it, is passed over."""
    write_project(tmp_path, TABLE)
    write_project(tmp_path / "a", '[tool.xlapipe.workloads]\nnear = "near:workload"')
    write_project(tmp_path / "a" / "b", "[tool.xlapipe]")
    (tmp_path / "a" / "b" / "c").mkdir()
    (tmp_path / "a" / "b" / "c" / "pyproject.toml").write_text("not TOML, and not about it")
    monkeypatch.chdir(tmp_path / "a" / "b" / "c")
    assert registered_workloads() == (
        WorkloadReference("near", "near:workload", folder=tmp_path / "a"),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("untunned = true", "found 'untunned'; fix: write untuned"),
        ('netwrok = "efa"', "found 'netwrok'; fix: write network"),
        ("[tool.xlapipe.workload]\nstep = 'a:b'", "found 'workload'; fix: write workloads"),
        ("network = {nic_bytes_per_secnd = 25e9}", "'nic_bytes_per_secnd'; fix: write nic_bytes"),
        ('target = "h100_smx"', "tool.xlapipe.target: unknown target 'h100_smx'.*h100_sxm"),
        ("target = 100", 'expected text, found 100; fix: write target = "…"'),
        ('tuning = "nnoe"', "tool.xlapipe.tuning: tuning 'nnoe': expected auto, none"),
    ],
)
def test_a_key_that_is_not_known_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, message: str
) -> None:
    """A wrong key, and `target`, were ignored, and the step was checked for another GPU."""
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path, f"[tool.xlapipe]\n{table}")
    reference = WorkloadReference("step", "steps:step", folder=tmp_path)
    with pytest.raises(XlapipeError, match=rf"pyproject\.toml: .*{message}"):
        jobs_of([reference], CompileSettings())


def test_what_a_project_states_of_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"target": "h100_sxm", "topology": "2x8", "tuning": "none", "memory": "60GB"}
    write_project(tmp_path, "[tool.xlapipe]\n" + "".join(f"{k} = '{v}'\n" for k, v in keys.items()))
    reference = WorkloadReference("step", "steps:step", folder=tmp_path)
    (stated,) = jobs_of([reference], CompileSettings())
    assert stated.target is not None
    assert (stated.target.name, str(stated.topology)) == ("h100_sxm", "2x8")
    assert stated.known_results is None
    (given,) = jobs_of([reference], CompileSettings(target="b200", topology="1x8"))
    assert given.target is not None
    assert (given.target.name, str(given.topology)) == ("b200", "1x8")
    assert memory_budget(None).limit_bytes == 60_000_000_000
    assert memory_budget(0.5).share == 0.5


def test_an_empty_table_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, TABLE)
    write_project(tmp_path / "a", "[tool.xlapipe.workloads]")
    monkeypatch.chdir(tmp_path / "a")
    assert registered_workloads() == ()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that registers `step` and `theirs` as entry points."""
    folder = tmp_path / "site-packages" / "their_package-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n")
    entries = "[xlapipe.workloads]\nstep = theirs:step\ntheirs = theirs:theirs\n"
    (folder / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(folder.parent)


@pytest.mark.usefixtures("installed")
def test_a_projects_name_is_used_before_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_workload("step") == WorkloadReference("step", "theirs:step")
    write_project(tmp_path, TABLE)
    assert find_workload("step").target == "steps.decode:workload"
    assert find_workload("theirs") == WorkloadReference("theirs", "theirs:theirs")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("[tool.xlapipe.workloads", "not valid TOML: .*line 4"),
        ("[[tool.xlapipe.workloads]]", r"tool\.xlapipe\.workloads: expected a table, found \["),
        ("[tool]\nxlapipe = 1", r"tool\.xlapipe: expected a table, found 1"),
        ("[tool.xlapipe]\nworkloads = 'a:b'", r"tool\.xlapipe\.workloads: expected a table"),
        ("[tool.xlapipe.workloads]\nstep = 1", "'step': expected 'module:attribute', found 1"),
        ("[tool.xlapipe.workloads]\nstep = 'a'", "'step': expected 'module:attribute', found 'a'"),
        ("[tool.xlapipe.workloads]\nstep = 'a:b(c=1)'", "'step': expected 'module:attribute'"),
        ("[tool.xlapipe.workloads]\nstep = '../a:b'", "'step': expected 'module:attribute'"),
        ("[tool.xlapipe.workloads]\nmy.step = 'a:b'", "'my': .*a table; fix: put a name .* quotes"),
        ("[tool.xlapipe.workloads]\n'a b' = 'a:b'", "'a b': a name consists of"),
        ("[tool.xlapipe.workloads]\n'' = 'a:b'", "'': a name consists of"),
        ("[tool.xlapipe.workloads]\n'a:b' = 'a:b'", "'a:b': a name consists of"),
    ],
)
def test_a_table_of_another_form_is_refused(
    table: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_project(tmp_path, table)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(WorkloadError, match=rf"^{re.escape(str(file))}: .*{expected}"):
        registered_workloads()
    with pytest.raises(WorkloadError, match=re.escape(str(file))):
        find_workload("step")
    assert find_workload("step:workload").folder == tmp_path / "below"


def test_a_project_file_that_is_not_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"xlapipe = '\xff'")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError, match="not valid TOML"):
        registered_workloads()
