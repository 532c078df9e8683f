"""Dataclasses from the plain data that JSON keeps of them, by their annotations."""

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_Convert = Callable[[Any], Any]


def record_of(record_type: type[Record], data: Mapping[str, Any]) -> Record:
    """The dataclass that `dataclasses.asdict` and JSON made `data` of.

    Objects and lists become the dataclasses, named tuples, tuples and enumerations that the
    annotations name. Other values are taken as they are: `field_types.misfit` checks them.

    Raises:
      KeyError, TypeError, ValueError: the data has another form, or keys that are no fields.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r:.60} is no object of {record_type.__name__}")
    converters = _converters(record_type)  # type: ignore[arg-type]  # a class is hashable
    return record_type(
        **{
            name: value if (convert := converters.get(name)) is None else convert(value)
            for name, value in data.items()
        }
    )


@cache
def _converters(record_type: Any) -> Mapping[str, _Convert]:
    hints = get_type_hints(record_type)
    converters = ((field.name, _converter(hints[field.name])) for field in fields(record_type))
    return {name: convert for name, convert in converters if convert is not None}


def _converter(annotation: Any) -> _Convert | None:
    """What makes a value of an annotation from plain data; None if nothing is to be changed."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        converters = [convert for part in arguments if (convert := _converter(part)) is not None]
        return partial(_if_not_scalar, converters[0]) if converters else None
    if origin is tuple:
        items = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return partial(_tuple_of, [_converter(item) for item in items])
    if is_dataclass(annotation):
        return partial(record_of, annotation)  # type: ignore[arg-type]  # a class, no instance
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        hints = get_type_hints(annotation)
        return partial(_named_tuple, annotation, [_converter(hint) for hint in hints.values()])
    return annotation if isinstance(annotation, type) and issubclass(annotation, Enum) else None


def _if_not_scalar(convert: _Convert, value: Any) -> Any:
    """Converts a list, an object or an enumeration's text; another value is of another part."""
    is_member = isinstance(convert, type) and value is not None
    return convert(value) if is_member or isinstance(value, (list, tuple, Mapping)) else value


def _tuple_of(converters: list[_Convert | None], values: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of a list; a single converter is for all values."""
    if not isinstance(values, (list, tuple)):  # an object and a text can be iterated too
        raise TypeError(f"{values!r:.60} is no list")
    if len(converters) == 1:
        convert = converters[0]
        return tuple(values) if convert is None else tuple(map(convert, values))
    return tuple(
        value if convert is None else convert(value)
        for convert, value in zip(converters, values, strict=True)
    )


def _named_tuple(
    tuple_type: Any, converters: list[_Convert | None], values: Iterable[Any]
) -> tuple[Any, ...]:
    made: tuple[Any, ...] = tuple_type(*_tuple_of(converters, values))
    return made
