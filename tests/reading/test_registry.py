"""Workloads by name, with arguments behind it."""

from typing import Any

import pytest

from xlapipe.errors import WorkloadError
from xlapipe.registry import find_workload, workload_arguments


def test_a_registered_name_with_arguments() -> None:
    plain = find_workload("qwen3-decode")
    found = find_workload("qwen3-decode(layers=28, batch=4)")
    assert found.target == f"{plain.target}(layers=28, batch=4)"
    assert found.name == "qwen3-decode(layers=28, batch=4)"
    assert found.registered and plain.registered


def test_a_reference_with_arguments() -> None:
    found = find_workload("mine.steps:decode(config='a (b): c', dims=(1, 2))")
    assert found.target == found.name
    assert not found.registered
    assert workload_arguments(found.target) == {"config": "a (b): c", "dims": (1, 2)}


@pytest.mark.parametrize(
    ("reference", "arguments"),
    [
        ("a:b", None),
        ("a:b()", {}),
        ("a:b(x=-1, y=None, z=[1.5, 'q'])", {"x": -1, "y": None, "z": [1.5, "q"]}),
    ],
)
def test_arguments_are_literals(reference: str, arguments: Any) -> None:
    assert workload_arguments(reference) == arguments


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
    with pytest.raises(WorkloadError, match="no literals by keyword"):
        find_workload(f"qwen3-decode{text}")


def test_a_name_nobody_knows_with_arguments() -> None:
    with pytest.raises(WorkloadError, match=r"unknown workload .* did you mean qwen3-decode"):
        find_workload("qwen3-decod(layers=28)")
