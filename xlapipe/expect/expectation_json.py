"""Expectations as JSON, so that a dump can be checked without importing its model."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from xlapipe.errors import DumpError
from xlapipe.expect import (
    collectives,
    copies,
    donation,
    gathered,
    gemms,
    kernels,
    loops,
    memory,
    reads,
    requested_collectives,
    values,
)
from xlapipe.expect.expectation import Expectation

_MODULES = (
    collectives,
    copies,
    donation,
    gathered,
    gemms,
    kernels,
    loops,
    memory,
    reads,
    requested_collectives,
    values,
)
_CLASSES: Mapping[str, type[Any]] = {
    **{
        cls.__name__: cls
        for module in _MODULES
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Expectation) and cls is not Expectation
    },
    "Matmul": gemms.Matmul,
}


def expectation_to_json(expectation: Expectation) -> dict[str, Any] | None:
    """Plain data for `expectation`; None for a class that is not of xlapipe's vocabulary."""
    if _CLASSES.get(type(expectation).__name__) is not type(expectation):
        return None
    return dict(_encode(expectation))


def expectation_from_json(data: Any, *, where: str) -> Expectation:
    """The expectation that `expectation_to_json` wrote.

    Raises:
      DumpError: unknown kind, or fields that are not those of the kind.
    """
    decoded = _decode(data, where)
    if not isinstance(decoded, Expectation):
        raise DumpError(f"{where}: expected a recorded expectation, found {data!r:.80}")
    return decoded


def _encode(value: Any) -> Any:
    if type(value) in _CLASSES.values():
        stated = {
            item.name: _encode(getattr(value, item.name))
            for item in fields(value)
            if getattr(value, item.name) != item.default
        }
        return {"expect": type(value).__name__, **stated}
    if isinstance(value, (tuple, list)):
        return [_encode(item) for item in value]
    return value


def _decode(data: Any, where: str) -> Any:
    if isinstance(data, list):
        return tuple(_decode(item, where) for item in data)
    if not isinstance(data, dict):
        return data
    arguments = {str(key): _decode(value, where) for key, value in data.items()}
    kind = arguments.pop("expect", None)
    cls = _CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise DumpError(
            f"{where}: expectation of unknown kind {kind!r}; expected one of "
            f"{', '.join(sorted(_CLASSES))}; was the dump made by a newer xlapipe?"
        )
    try:
        return cls(**arguments)
    except TypeError as error:
        raise DumpError(f"{where}: expectation {kind}: {error}") from error
