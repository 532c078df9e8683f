"""The canonical form of a backend_config: compact JSON with sorted keys.

In the proto and in `from instruction:` lines, keys are in the order in which XLA wrote them; the
HLO text of some versions sorts them. Configs that are not JSON (MLIR attributes of custom calls,
opaque strings) are not changed.
"""

import json
from typing import Any


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_DECODER = json.JSONDecoder(parse_float=_number)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


def canonical(text: str) -> str:
    """`text` in canonical form."""
    if not text.startswith("{"):
        return text
    try:
        return _ENCODER.encode(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return text


def decode_at(text: str, start: int) -> tuple[str, int] | None:
    """The canonical form of the JSON object at `start` and the position after it, or None."""
    try:
        value: Any
        value, end = _DECODER.raw_decode(text, start)
        return _ENCODER.encode(value), end
    except (ValueError, RecursionError):
        return None
