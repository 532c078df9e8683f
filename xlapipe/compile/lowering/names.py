"""Names of a step's arguments and of their leaves, and the line that defines it, for messages."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from xlapipe.compile.lowering.bound_functions import unbound
from xlapipe.compile.lowering.user_frame import is_user_code
from xlapipe.errors import WorkloadError
from xlapipe.workload import Workload


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
    """Refuses arguments that the function does not take.

    Raises:
      WorkloadError: with Python's own reason.
    """
    inner = unbound(workload.fn)[0]
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
    fn = unbound(workload.fn)[0]
    fn = inspect.unwrap(getattr(fn, "fun", fn))
    code = getattr(fn, "__code__", None)
    where = f"workload {workload.name}: fn"
    if code is None or not is_user_code(code.co_filename):
        return where
    return f"{where} ({code.co_filename}:{code.co_firstlineno})"
