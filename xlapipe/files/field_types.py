"""Compare data that was read from a file with the annotations of the dataclass that it became."""

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints


def misfit(value: Any, annotation: Any, name: str) -> str | None:
    """The first part of `value` that its annotation does not allow.

    A number that may be a float may be an integer, and no number may be a boolean. Sequences may be
    lists or tuples.

    Args:
      name: of the value, for the answer.

    Returns:
      E.g. `arguments[3].shape[0] is '8', expected int`; None if all of it fits.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return None
    if origin in (Union, types.UnionType):
        misfits = [misfit(value, argument, name) for argument in arguments]
        return None if None in misfits else _message(value, annotation, name)
    parts: Iterable[tuple[str, Any, Any]]
    if is_dataclass(annotation):
        if type(value) is not annotation:
            return _message(value, annotation, name)
        hints = _hints(annotation)  # type: ignore[arg-type]  # a class is hashable
        parts = ((f"{name}.{key}", getattr(value, key), hint) for key, hint in hints)
    elif origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _message(value, annotation, name)
        key_type, value_type = arguments
        parts = (
            part
            for key, item in value.items()
            for part in (
                (f"a key of {name}", key, key_type),
                (f"{name}[{key!r}]", item, value_type),
            )
        )
    elif origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, (list, tuple)):
            return _message(value, annotation, name)
        types_of_items = [arguments[0]] * len(value)
        if origin is tuple and arguments[-1] is not Ellipsis:
            types_of_items = list(arguments)
        if len(types_of_items) != len(value):
            return _message(value, annotation, name)
        parts = (
            (f"{name}[{index}]", item, kind)
            for index, (item, kind) in enumerate(zip(value, types_of_items, strict=True))
        )
    else:
        return None if _is_a(value, annotation) else _message(value, annotation, name)
    return next((text for part in parts if (text := misfit(part[1], part[2], part[0]))), None)


@cache
def _hints(dataclass_type: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(dataclass_type)
    return tuple((field.name, hints[field.name]) for field in fields(dataclass_type))


def _is_a(value: Any, annotation: Any) -> bool:
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return type(value) in (int, float)
    return type(value) is annotation or (
        annotation not in (int, bool) and isinstance(value, annotation)
    )


def _message(value: Any, annotation: Any, name: str) -> str:
    expected = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return f"{name} is {value!r:.60}, expected {expected or annotation}"
