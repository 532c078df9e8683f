"""Functions without what `functools.partial`, methods and Flax bind to them."""

import functools
import inspect
import types
from typing import Any


def unbound(fn: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A function without `functools.partial` and method binding, and what these bound.

    Flax's `nnx.cached_partial` is one of them: what it caches is not part of the program.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while True:
        cached = _cached_partial(fn)
        call = getattr(fn, "__call__", None)  # noqa: B004 - what it is bound to matters
        if not hasattr(fn, "lower") and _is_bound_wrapper(call):
            fn = call
        if _is_partial(fn) and _can_be_wrapped(fn.func):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        elif isinstance(fn, types.MethodType) and _can_be_wrapped(fn.__func__):
            fn, args = fn.__func__, (fn.__self__, *args)
        elif cached is not None:
            fn, args = cached[0], (*cached[1], *args)
        else:
            return fn, args, kwargs


def _cached_partial(fn: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The function and the modules of a result of Flax's `nnx.cached_partial`."""
    if not inspect.isfunction(fn) or fn.__code__.co_name != "cache_args_wrapper":
        return None
    variables = inspect.getclosurevars(fn).nonlocals
    return (variables["f"], tuple(variables["cached_args"])) if "cached_args" in variables else None


def _is_partial(fn: Any) -> bool:
    """Whether `fn` is a partial, Equinox's among them: a method that is bound to its module."""
    if isinstance(fn, functools.partial):
        return True
    return type(fn).__name__ == "Partial" and type(fn).__module__.startswith("equinox.")


def _is_bound_wrapper(call: Any) -> bool:
    """Whether a method is a jitted function: `call` of an object whose class jits `__call__`."""
    function = call.func if _is_partial(call) else getattr(call, "__func__", None)
    return hasattr(function, "lower")


def _can_be_wrapped(fn: Any) -> bool:
    return hasattr(fn, "lower") or isinstance(fn, (functools.partial, types.MethodType))
