"""The published schemas of `--json`, compared with real outputs."""

import json
from typing import Any

import pytest

from tests.report.json_outputs import outputs
from tests.report.json_schema import problems
from tests.report.make_schemas import SCHEMAS, VERSION, written
from xlapipe.differences.changes import Change
from xlapipe.report.failures.failure import FailureKind


def schema(command: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{command}.v{VERSION}.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    examples: dict[str, list[Any]] = {}
    for command, output in outputs(tmp_path_factory.mktemp("outputs")):
        examples.setdefault(command, []).append(output)
    return examples


def test_outputs_have_the_form_of_their_schema(real: dict[str, list[Any]]) -> None:
    found = [
        f"{command}: {problem}"
        for command, values in real.items()
        for value in values
        for problem in problems(value, schema(command))
    ]
    assert found == []


def test_every_schema_has_an_output(real: dict[str, list[Any]]) -> None:
    assert {f"{command}.v{VERSION}.json" for command in real} == {
        path.name for path in SCHEMAS.glob("*.json")
    }
    for path in SCHEMAS.glob("*.json"):
        text = path.read_text()
        assert json.loads(text)["description"]
        assert text == written(json.loads(text)), f"{path}: run make_schemas.py"


def test_every_kind_of_change_is_listed_and_has_an_output(real: dict[str, list[Any]]) -> None:
    kinds = {change.__name__ for change in Change.__subclasses__()} - {"BytesChange", "LeafChange"}
    listed = schema("diff")["properties"]["changes"]["items"]["properties"]["change"]["enum"]
    assert set(listed) == kinds
    assert {change["change"] for diff in real["diff"] for change in diff["changes"]} == kinds


def test_the_kinds_of_failures_are_listed() -> None:
    assert schema("explain")["properties"]["kind"]["enum"] == [*FailureKind, None]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"kind": "execution"}, "lacks 'requested_bytes'"),
        ({"kind": "other"}, "expected one of"),
        ({"requested_bytes": "1"}, "expected integer or null, found string"),
        ({"plan": {"temp_bytes": 1.5}}, "expected integer, found number"),
        ([], "expected object, found array"),
    ],
)
def test_another_form_is_found(value: Any, problem: str) -> None:
    assert any(problem in text for text in problems(value, schema("explain")))
