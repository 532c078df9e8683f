"""Data of JSON files: what fits becomes a dataclass, all else is refused with its place."""

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from msgspec import Meta

from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal
from xlapipe.files.typed_data import Line, MisfitError, Seconds, Text, read_typed, typed


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
    seconds: Seconds = 0.0
    share: Annotated[float, Meta(gt=0)] = 1.0
    flag: bool = False
    line: Line = ""
    text: Text = ""


DATA = {
    "parts": [{"name": "a"}, {"name": "b"}],
    "span": [1, 2],
    "kind": "first",
    "axes": [None, "x", ["y", "z"]],
}


def test_lists_and_objects_become_what_the_annotations_name() -> None:
    whole = Whole((Part("a"), Part("b")), Span(1, 2), Kind.FIRST, (None, "x", ("y", "z")))
    assert typed(Whole, DATA) == whole
    assert typed(Whole, {**asdict(whole), "kind": "first"}) == whole
    assert typed(Whole, {**DATA, "of_a_later_version": 1}) == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": {"name": "a"}}, "parts: expected a list, found {'name': 'a'}"),
        ({"parts": "ab"}, "parts: expected a list, found 'ab'"),
        ({"parts": [["a"]]}, "parts[0]: expected an object, found ['a']"),
        ({"parts": None}, "parts: expected a list, found None"),
        ({"parts": [{"name": "a"}, {}]}, "parts[1].name: expected a value, found none"),
        ({"parts": [{"name": 3}]}, "parts[0].name: expected text, found 3"),
        ({"span": [1]}, "span: expected a list of length 2, found [1]"),
        ({"span": {"start": 1, "end": 2}}, "span: expected a list or null, found {'start': 1, "),
        ({"kind": "second"}, "kind: expected another value, found 'second'"),
        ({"axes": [{"x": 1}]}, "axes[0]: expected text or a list or null, found {'x': 1}"),
        ({"seconds": True}, "seconds: expected a number, found True"),
        ({"seconds": "1"}, "seconds: expected a number, found '1'"),
        ({"seconds": 1e9}, "seconds: expected a number <= 86400.0, found 1000000000.0"),
        ({"seconds": -1}, "seconds: expected a number >= 0.0, found -1"),
        ({"seconds": float("nan")}, "seconds: expected a number >= 0.0, found nan"),
        ({"seconds": float("inf")}, "seconds: expected a number <= 86400.0, found inf"),
        ({"share": 0}, "share: expected a number > 0.0, found 0"),
        ({"flag": "no"}, "flag: expected true or false, found 'no'"),
        ({"flag": 1}, "flag: expected true or false, found 1"),
        ({"line": "a\x1b[2J"}, "line: expected text without control characters, found 'a\\x1b[2J'"),
        ({"line": "a\nb"}, "line: expected text without control characters, found 'a\\nb'"),
        ({"line": "\u202ea"}, "line: expected text without control characters, found '\\u202ea'"),
        ({"text": "a\0"}, "text: expected text without control characters, found 'a\\x00'"),
        ({"text": "\ud800"}, "text: expected text without control characters, found '\\ud800'"),
    ],
)
def test_data_of_another_form_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MisfitError) as caught:
        typed(Whole, {**DATA, **change})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected an object, found []"),
        ("{}", "expected schema_version 1, found None"),
        ('{"schema_version": true}', "expected schema_version 1, found True"),
        ('{\n"schema_version": 2}', "expected schema_version 1, found 2"),
        ('{"schema_version": 1,\n"a": 1, "a": 2}', "not JSON: the key 'a' is given twice"),
        ('{"schema_version": 1, "seconds": NaN}', "not JSON: NaN is not a number of JSON"),
        ('{"schema_version": 1, "seconds": 1e999}', "not JSON: 1e999 is not a finite number"),
        ("{", "not JSON: "),
    ],
)
def test_content_of_another_form_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DumpError) as caught:
        read_typed(path, Whole, refusal=Refusal(fix="this"), limit_bytes=1000, schema_version=1)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert str(caught.value).endswith("; fix: this")
