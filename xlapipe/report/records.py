"""Figures stay dataclasses until they are rendered; this is how JSON renders them."""

import json
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from xlapipe.plans import Shape, SourceLine

Row = TypeVar("Row")


def row_of(row_type: type[Row], record: Any, **others: Any) -> Row:
    """A dataclass of what `record` has under the same names, and of `others`."""
    names = [field.name for field in fields(row_type)]  # type: ignore[arg-type]  # a dataclass
    values = {name: getattr(record, name) for name in names if name not in others}
    return row_type(**values, **others)


def named(record: Any, *names: str, prefix: str = "") -> dict[str, Any]:
    """Attributes of `record` by name, which gets a prefix; all are None if `record` is."""
    return {f"{prefix}{name}": None if record is None else getattr(record, name) for name in names}


def json_form(record: Any) -> dict[str, Any] | str:
    """The fields of a dataclass by name, and the text of a source line or a shape.

    For `json.dumps(…, default=json_form)`. A record whose JSON is another states it in a method
    `json_fields`.
    """
    if isinstance(record, (SourceLine, Shape)):
        return str(record)
    if hasattr(record, "json_fields"):
        data: dict[str, Any] = record.json_fields()
        return data
    if not is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{type(record).__name__} has no form in JSON")
    return fields_of(record)


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; what they hold stays as it is."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def plain_data(data: Any) -> Any:
    """What JSON holds of `data`: dictionaries, lists, texts, numbers and None."""
    return json.loads(json.dumps(data, default=json_form))
