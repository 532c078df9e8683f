"""Figures are dataclasses until they are rendered; this is how JSON renders them."""

import json
from dataclasses import fields, is_dataclass
from typing import Any


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as `json.dumps(…, default=fields_of)` takes them.

    Raises:
      TypeError: `record` is not an object of a dataclass.
    """
    if not is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{type(record).__name__} has no form in JSON")
    return {field.name: getattr(record, field.name) for field in fields(record)}


def plain_data(data: Any) -> Any:
    """What JSON holds of `data`: dictionaries, lists, texts, numbers and None."""
    return json.loads(json.dumps(data, default=fields_of))
