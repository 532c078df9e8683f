"""Workloads by name, optionally followed by arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from xlapipe.errors import WorkloadError
from xlapipe.registry import WorkloadReference, find_workload


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
