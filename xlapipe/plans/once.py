"""Results that are computed once for a frozen object, as `functools.cached_property` does."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Owner = TypeVar("_Owner")
_Result = TypeVar("_Result")


def once_per_object(function: Callable[[_Owner], _Result]) -> Callable[[_Owner], _Result]:
    """Caches the result of a pure function of one object, or of a class, on that object.

    For functions of a `Plan`, a `Program` or a dump in modules that import those classes. The
    result is freed with the object, and is not part of its fields, its equality or its copies by
    `replace`.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def once(owner: _Owner) -> _Result:
        results = owner.__dict__
        if name not in results:
            results[name] = function(owner)
        result: _Result = results[name]
        return result

    return once
