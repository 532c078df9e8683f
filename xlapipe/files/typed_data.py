"""Data of a JSON file as the dataclass that its annotations state: types, ranges, and texts.

All JSON that a user may have edited is read here. A field that may not have every value of its
type states its range in its annotation: `Seconds`, `Line`, or `Annotated` with
msgspec's `Meta`.
"""

import re
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from xlapipe.files.contents import Refusal, parse_json, read_plain
from xlapipe.files.visible_text import visible_line

Typed = TypeVar("Typed")
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=86_400)]  # no step takes a day
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
# Text without NUL and halves of surrogate pairs, which no file and no option of XLA can hold.
Text: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\x00\ud800-\udfff]*\Z")]
# A name or another text of one line, without controls of terminals and of the writing's direction.
Line: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]*\Z",
        max_length=4096,
    ),
]

_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `\$?(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_EXPECTED = re.compile(r"Expected (.+?)(?:, got .+)?", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `([^`]*)`")
_LIMITED = re.compile(r"^(int|float|str|array|object)(?= )")
_WORDS = {"int": "an integer", "float": "a number", "str": "text", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "an object"}


class MisfitError(ValueError):
    """Data that does not fit an annotation; the message begins with the field."""


def typed(kind: type[Typed], data: Any) -> Typed:
    """The value of the annotation `kind` that JSON made `data` of.

    Lists become tuples and named tuples, objects dataclasses, texts enumerations. A number that may
    be a float may be an integer, and no number may be a boolean. Keys of no field are left out, as
    a later version may write them.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), data) from None
    except UnicodeEncodeError:
        raise MisfitError("expected text, found half of a surrogate pair") from None


def read_typed(
    path: Path,
    kind: type[Typed],
    *,
    refusal: Refusal,
    limit_bytes: int,
    schema_version: int,
    follow_links: bool = True,
) -> Typed:
    """The value in a JSON file whose object has `schema_version` and the fields of `kind`."""
    content = read_plain(path, limit_bytes=limit_bytes, refusal=refusal, follow_links=follow_links)
    try:
        return parse_typed(content, kind, schema_version=schema_version)
    except MisfitError as error:
        refusal.fail(f"{path}: {visible_line(str(error))}")
    except ValueError as error:
        refusal.fail(f"{path}: not JSON: {visible_line(str(error))}")


def parse_typed(content: str | bytes, kind: type[Typed], *, schema_version: int) -> Typed:
    """The value in the text of such a file."""
    data = parse_json(content)
    if not isinstance(data, dict):
        raise MisfitError(f"expected an object, found {data!r:.60}")
    version = data.get("schema_version")
    if type(version) is not int or version != schema_version:
        raise MisfitError(f"expected schema_version {schema_version}, found {version!r:.60}")
    return typed(kind, data)


def _misfit(text: str, data: Any) -> MisfitError:
    """msgspec's message in this project's words, with the value that was found."""
    message = _MESSAGE.fullmatch(text)
    assert message is not None  # it matches all text
    path: list[str | int] = []
    value = data
    for match in _STEP.finditer(message["path"] or ""):
        step = match[1] if match[1] is not None else int(match[2])
        try:
            value = value[step]
        except (IndexError, KeyError, TypeError):
            break  # below a value of a mapping, whose key msgspec does not name
        path.append(step)
    named = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    missing = _MISSING.search(text)
    if missing is not None:
        field = f"{named}.{missing[1]}".removeprefix(".")
        return MisfitError(f"{field}: expected a value, found none")
    field = f"{named.removeprefix('.')}: " if named else ""
    if not message["what"].startswith(("Expected ", "Invalid ")):
        return MisfitError(f"{field}{message['what']}")  # of a class's own check
    expected = _expected(message["what"])
    return MisfitError(f"{field}expected {expected}, found {value!r:.60}")


def _expected(what: str) -> str:
    """What msgspec expected, e.g. of "Expected `float` > 0.0, got `str`"."""
    match = _EXPECTED.fullmatch(what)
    if match is None:
        return "another value"  # an enumeration lacks this one
    if "matching regex" in match[1]:
        return "text without control characters"
    words = (_WORDS.get(word, word) for word in match[1].replace("`", "").split(" | "))
    return _LIMITED.sub(lambda name: _WORDS[name[1]], " or ".join(words))
