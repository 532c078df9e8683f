"""Expectations as JSON, so that a dump can be checked without importing its model."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from xlapipe.errors import DumpError, XlapipeError
from xlapipe.expect.expectation import Expectation
from xlapipe.expect.gemms import Matmul
from xlapipe.files.typed_data import typed
from xlapipe.files.visible_text import visible_line


@cache
def _classes() -> Mapping[str, type[Any]]:
    """The classes that can be recorded, by name: all of this package, not those of users.

    Importing any module of this package imports all of its expectations, so none is missing here.
    """
    classes: dict[str, type[Any]] = {Matmul.__name__: Matmul}
    pending: list[type[Any]] = [Expectation]
    while pending:
        for cls in pending.pop().__subclasses__():
            pending.append(cls)
            if cls.__module__.startswith(f"{__package__}.") and not cls.__name__.startswith("_"):
                classes[cls.__name__] = cls
    return classes


def expectation_to_json(expectation: Expectation) -> dict[str, Any] | None:
    """`expectation` as plain data; None for a class that xlapipe does not define."""
    if _classes().get(type(expectation).__name__) is not type(expectation):
        return None
    return dict(_encode(expectation))


def expectation_from_json(data: Any, *, where: str) -> Expectation:
    """The expectation that `expectation_to_json` wrote.

    Raises:
      DumpError: the kind is unknown, or the fields do not fit the kind.
    """
    decoded = _decode(data, where)
    if not isinstance(decoded, Expectation):
        raise DumpError(
            f"{where}: expected a recorded expectation, found {data!r:.80}; "
            "fix: dump the workload again"
        )
    return decoded


def _encode(value: Any) -> Any:
    if type(value) in _classes().values():
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
    cls = _classes().get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise DumpError(
            f"{where}: expected an expectation of kind {', '.join(sorted(_classes()))}, found "
            f"{kind!r}; fix: read the dump with the version of xlapipe that wrote it"
        )
    try:
        _ = cls(**arguments)  # refuses unknown parameters
        expectation = typed(cls, arguments)
    except (TypeError, ValueError, XlapipeError) as error:
        raise DumpError(
            f"{where}: expected the parameters of {kind}, found "
            f"{visible_line(str(arguments)):.200} ({visible_line(str(error)):.200}); "
            "fix: dump the workload again"
        ) from error
    return expectation
