"""Backend configs as text that does not depend on how XLA serialised them."""

import json
from typing import Any

_CONFIG = "backend_config="


def with_plain_config(line: str) -> str:
    """The line of an instruction, with its backend config in one spelling."""
    start = line.find(_CONFIG) + len(_CONFIG)
    try:
        config, end = json.JSONDecoder().raw_decode(line, start)
    except ValueError:
        return line
    return line[:start] + json.dumps(_without_defaults(config), sort_keys=True) + line[end:]


def _without_defaults(value: Any) -> Any:
    """The value without fields that are false, zero, empty or invalid; numbers as text."""
    if isinstance(value, dict):
        fields = {name: _without_defaults(item) for name, item in value.items()}
        return {name: item for name, item in fields.items() if not _is_default(item)}
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_default(value: Any) -> bool:
    return value in ("False", "0", "", [], {}) or str(value).endswith("_INVALID")
