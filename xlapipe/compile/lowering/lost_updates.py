"""Updates of Python objects that `jax.jit` drops: the plan would be of a step without them.

A plain function goes under `jax.jit` here. `jax.jit` gives it copies of its arguments, so a module
of Flax's nnx that it updates in place keeps its old values; under `nnx.jit` it would not.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr, tree_flatten_with_path

from xlapipe.compile.lowering.names import fn_text, positional_names
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import jitted_function, replaced
from xlapipe.workload import Workload

_LISTED = 3
# How far the objects that a function closes over are searched for values of the step.
_SEARCHED_DEPTH, _SEARCHED_ITEMS = 4, 1000


def refusing_lost_updates(workload: Workload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which while it is traced refuses updates in place of objects that it does not return.

    Raises:
      WorkloadError: when the function is called, with the leaves that it updated.
    """

    def refuse(lost: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        raise _error(workload, lost, args, kwargs)

    arguments = tuple(workload.args), dict(workload.kwargs)
    return _watched(fn, refuse) if _holds_mutable(arguments) else fn


@contextmanager
def listing_dropped_updates(fn: Any, arguments: Any) -> Iterator[list[str]]:
    """While a jitted function is lowered, adds the leaves that it updates in place to a list.

    After the block, the list has the values of the step that were stored in objects which the
    function closes over or is bound to as well.

    Args:
      fn: the step without partial; only the user's own `jax.jit` is watched.
      arguments: arguments of the step, as a tree.
    """
    dropped: list[str] = []
    place = jitted_function(fn)
    original: Any = getattr(*place) if place is not None else None
    if place is None or not _holds_mutable(arguments):
        yield dropped
    else:
        watched = _watched(original, lambda lost, args, kwargs: dropped.extend(lost))
        with replaced(place, watched):
            yield dropped
    dropped += _stored_values(inspect.unwrap(original or fn))


def _watched(
    fn: Callable[..., Any],
    report: Callable[[Sequence[str], Sequence[Any], Mapping[str, Any]], None],
) -> Callable[..., Any]:
    """`fn`, which reports the leaves that a call updates in place and does not return."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = _leaves(fn, args, kwargs)
        result = fn(*args, **kwargs)
        returned = {id(leaf) for leaf in jax.tree.leaves(result)}
        after = _leaves(fn, args, kwargs)
        lost = [
            path
            for path, leaf in after.items()
            if leaf is not before.get(path) and id(leaf) not in returned
        ]
        if lost:
            report(lost, args, kwargs)
        return result

    return call


def _holds_mutable(tree: Any) -> bool:
    return any(map(_is_mutable, _nodes(tree)))


def _stored_values(fn: Any) -> list[str]:
    """Paths of the tracers in the objects that a function closes over or is bound to."""
    tracer_paths: list[str] = []
    seen: set[int] = set()

    def visit(path: str, value: Any, depth: int) -> None:
        if isinstance(value, jax.core.Tracer):
            tracer_paths.append(path)
        elif depth and id(value) not in seen and not isinstance(value, (type, ModuleType)):
            seen.add(id(value))
            if isinstance(value, Mapping):
                items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
            elif isinstance(value, (list, tuple)):
                items = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
            else:
                attributes = getattr(value, "__dict__", {})
                items = [(f"{path}.{name}", item) for name, item in attributes.items()]
            for inner, item in items[:_SEARCHED_ITEMS]:
                visit(inner, item, depth - 1)

    visit("self", getattr(fn, "__self__", None), _SEARCHED_DEPTH)
    function = getattr(fn, "__func__", fn)
    if inspect.isfunction(function) and function.__closure__:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            with suppress(ValueError):  # a cell without content
                visit(name, cell.cell_contents, _SEARCHED_DEPTH)
    return tracer_paths


def _error(
    workload: Workload, lost: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> WorkloadError:
    more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    types = {type(node).__module__ for node in _nodes((args, kwargs)) if _is_mutable(node)}
    wrapper = (
        "give nnx.jit(fn), which carries the updates out"
        if any(module.startswith("flax.nnx") for module in types) or _uses_nnx(args, kwargs)
        else "return the updated object"
    )
    return WorkloadError(
        f"{fn_text(workload)} updates arguments in place ({', '.join(lost[:_LISTED])}"
        f"{more}) and does not return them; jax.jit, which a plain function goes under, drops such "
        f"updates, so the plan would be of a step without them; fix: {wrapper}, or give "
        "jax.jit(fn) if they are meant to be dropped"
    )


def _uses_nnx(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(
        base.__module__.startswith("flax.nnx")
        for node in _nodes((args, kwargs))
        for base in type(node).__mro__
    )


def _leaves(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The leaves below attributes of objects, by name; items of lists and dicts are left out."""
    named = dict(zip(positional_names(fn, len(args)), args, strict=True))
    return {
        f"{name}{keystr(path)}": leaf
        for name, value in {**named, **kwargs}.items()
        for path, leaf in tree_flatten_with_path(value)[0]
        if any(isinstance(key, GetAttrKey) for key in path)
    }


def _nodes(tree: Any) -> Iterator[Any]:
    """The objects of a tree that are neither leaves nor containers of Python."""
    seen: list[Any] = []

    def note(node: Any) -> bool:
        if not isinstance(node, (tuple, list, dict, type(None))):
            seen.append(node)
        return False

    jax.tree.leaves(tree, is_leaf=note)
    return iter(seen)


def _is_mutable(node: Any) -> bool:
    """Whether a node of a tree is an object that can be updated in place."""
    if not hasattr(node, "__dict__") or jax.tree_util.all_leaves([node]):
        return False
    parameters = getattr(type(node), "__dataclass_params__", None)
    return not getattr(parameters, "frozen", False)


def refuse_empty_program(workload: Workload, traced: Any, lowering: Any) -> None:
    """Refuses a program without parameters, outputs and effects: all of its totals would be 0.

    Args:
      traced: `jax.stages.Traced` of the step.
      lowering: as of `jax_private.lowering_of`.

    Raises:
      WorkloadError: the program is empty.
    """
    jaxpr = traced.jaxpr.jaxpr
    if jaxpr.outvars or jaxpr.effects or lowering.compile_args["kept_var_idx"]:
        return
    raise WorkloadError(
        f"{fn_text(workload)} returns nothing and its program uses no argument, so XLA "
        "would compile an empty program; a step that updates Python objects in place does that "
        "under jax.jit; fix: pass the state as an argument and return it, or give the nnx.jit "
        "function with its modules in args="
    )
