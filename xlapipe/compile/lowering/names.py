"""Names of a step's arguments and of their leaves, and the line that defines it, for messages.

A step is the function without what `functools.partial`, methods and Flax bind to it.
"""

import functools
import inspect
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from xlapipe.errors import WorkloadError
from xlapipe.jax_private import TracedHere
from xlapipe.plans.call_chains import is_own_code
from xlapipe.workload import Workload

_XLAPIPE = f"{Path(__file__).parents[2]}/"


def argument_names(workload: Workload) -> list[str]:
    """Names of the function's positional parameters; `args[i]` for those of `*args`."""
    return positional_names(workload.fn, len(workload.args))


def positional_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The first `count` positional parameters of a function; `args[i]` for those of `*args`."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return names[:count] + [f"args[{number}]" for number in range(len(names), count)]


def named_leaves(workload: Workload) -> Iterator[tuple[str, Any]]:
    """The leaves of the arguments with their paths, in the order of `(args, kwargs)` as a tree."""
    named = [
        *zip(argument_names(workload), workload.args, strict=True),
        *sorted(workload.kwargs.items()),
    ]
    for name, value in named:
        for path, leaf in tree_flatten_with_path(value)[0]:
            yield f"{name}{keystr(path)}", leaf


def refuse_other_signature(workload: Workload) -> None:
    """Refuses arguments that the function does not take."""
    inner = unbound(workload.fn).fn
    if hasattr(inner, "lower") and not isinstance(inner, type(jax.jit(len))):
        return  # a wrapper may bind arguments itself
    try:
        signature = inspect.signature(workload.fn)
    except (TypeError, ValueError):
        return  # a function that does not state its parameters
    try:
        signature.bind(*workload.args, **workload.kwargs)
    except TypeError as error:
        raise WorkloadError(
            f"{fn_text(workload)} takes {signature}, and the workload gives {len(workload.args)} "
            f"args and the kwargs {sorted(workload.kwargs)}: {error}; fix: give one of args= or "
            "kwargs= for each parameter, or bind it with functools.partial"
        ) from None


def fn_text(workload: Workload) -> str:
    """`workload NAME: fn (FILE:LINE)`; without the line for a function of a library."""
    fn = unbound(workload.fn).fn
    fn = inspect.unwrap(getattr(fn, "fun", fn))
    code = getattr(fn, "__code__", None)
    where = f"workload {workload.name}: fn"
    if code is None or not is_user_code(code.co_filename):
        return where
    return f"{where} ({code.co_filename}:{code.co_firstlineno})"


class Unbound(NamedTuple):
    """A function, and the arguments that were bound to it."""

    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


def unbound(fn: Any) -> Unbound:
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
            fn, args = cached.fn, (*cached.args, *args)
        else:
            return Unbound(fn, args, kwargs)


def _cached_partial(fn: Any) -> Unbound | None:
    """The function and the modules of a result of Flax's `nnx.cached_partial`."""
    if not inspect.isfunction(fn) or fn.__code__.co_name != "cache_args_wrapper":
        return None
    variables = inspect.getclosurevars(fn).nonlocals
    if "cached_args" not in variables:
        return None
    return Unbound(variables["f"], tuple(variables["cached_args"]))


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


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame that is not in a library.

    What is raised while a traced operation is lowered has only jax's own frames; jax gives those of
    the traced operation as its cause.
    """
    cause = error.__cause__
    if isinstance(cause, TracedHere):
        frame = _innermost(cause)
        if frame is not None:
            return frame
    return _innermost(error)


def _innermost(error: BaseException) -> str | None:
    innermost = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_user_code(frame.filename):
            continue
        innermost = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return innermost


def is_user_code(filename: str) -> bool:
    """Whether a file is neither of a library nor of xlapipe."""
    return is_own_code(filename) and not filename.startswith((_XLAPIPE, "<"))
