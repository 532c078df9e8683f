"""Updates of Python objects that `jax.jit` drops: the plan would be of a step without them.

A plain function goes under `jax.jit` here. `jax.jit` gives it copies of its arguments, so a module
of Flax's nnx that it updates in place keeps its old values; under `nnx.jit` it would not.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr, tree_flatten_with_path

from xlapipe.compile.lowering.names import fn_text, positional_names
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import jitted_function, replaced
from xlapipe.workload import Workload

_LISTED = 3


@contextmanager
def listing_lost_updates(fn: Any, arguments: Any) -> Iterator[list[str]]:
    """While a jitted function is lowered, adds the leaves that it updates in place to a list.

    Those that it returns are not lost.
    """
    lost: list[str] = []
    place = jitted_function(fn)
    if place is None or not any(map(_is_mutable, _nodes(arguments))):
        yield lost
        return
    original: Any = getattr(*place)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before = _leaves(original, args, kwargs)
        result = original(*args, **kwargs)
        returned = {id(leaf) for leaf in jax.tree.leaves(result)}
        for path, leaf in _leaves(original, args, kwargs).items():
            if leaf is not before.get(path) and id(leaf) not in returned:
                lost.append(path)
        return result

    with replaced(place, watched):
        yield lost


def lost_updates_error(workload: Workload, lost: Sequence[str]) -> WorkloadError:
    """The error for leaves that a plain function updates, which only a wrapper would carry out."""
    more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    bases = (
        base
        for node in _nodes((tuple(workload.args), dict(workload.kwargs)))
        for base in type(node).__mro__
    )
    wrapper = (
        "give nnx.jit(fn), which carries the updates out"
        if any(base.__module__.startswith("flax.nnx") for base in bases)
        else "return the updated object"
    )
    return WorkloadError(
        f"{fn_text(workload)} updates arguments in place ({', '.join(lost[:_LISTED])}"
        f"{more}) and does not return them; jax.jit, which a plain function goes under, drops such "
        f"updates, so the plan would be of a step without them; fix: {wrapper}, or give "
        "jax.jit(fn) if they are meant to be dropped"
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
    """Refuses a program without parameters, outputs and effects: all of its totals would be 0."""
    jaxpr = traced.jaxpr.jaxpr
    if jaxpr.outvars or jaxpr.effects or lowering.compile_args["kept_var_idx"]:
        return
    raise WorkloadError(
        f"{fn_text(workload)} returns nothing and its program uses no argument, so XLA "
        "would compile an empty program; a step that updates Python objects in place does that "
        "under jax.jit; fix: pass the state as an argument and return it, or give the nnx.jit "
        "function with its modules in args="
    )
