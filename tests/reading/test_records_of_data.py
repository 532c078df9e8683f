"""Dataclasses made of the plain data that JSON keeps of them."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

from xlapipe.files.records import record_of


class Kind(Enum):
    FIRST = "first"


class Span(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True)
class Part:
    name: str


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    span: Span | None
    kind: Kind
    axes: tuple[str | tuple[str, ...] | None, ...] = ()


DATA = {
    "parts": [{"name": "a"}, {"name": "b"}],
    "span": [1, 2],
    "kind": "first",
    "axes": [None, "x", ["y", "z"]],
}


def test_lists_and_objects_become_what_the_annotations_name() -> None:
    whole = Whole((Part("a"), Part("b")), Span(1, 2), Kind.FIRST, (None, "x", ("y", "z")))
    assert record_of(Whole, DATA) == whole
    assert record_of(Whole, {**asdict(whole), "kind": "first"}) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"parts": {"name": "a"}},
        {"parts": "ab"},
        {"parts": [["a"]]},
        {"parts": None},
        {"parts": [{"name": "a", "more": 1}]},
        {"span": [1]},
        {"span": {"start": 1, "end": 2}},
        {"kind": "second"},
        {"axes": {"x": 1}},
        {"axes": [{"x": 1}]},
        {"unknown": 1},
    ],
)
def test_data_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        record_of(Whole, {**DATA, **change})
