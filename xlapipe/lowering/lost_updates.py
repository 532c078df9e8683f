"""Updates of Python objects that `jax.jit` drops: the plan would be of a step without them.

A plain function goes under `jax.jit` here. `jax.jit` gives it copies of its arguments, so a module
of Flax's nnx that it updates in place keeps its old values; under `nnx.jit` it would not.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr, tree_flatten_with_path

from xlapipe.errors import WorkloadError
from xlapipe.lowering.arguments import positional_names
from xlapipe.workload import Workload

_LISTED = 3


def refusing_lost_updates(workload: Workload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which while it is traced refuses updates in place of objects that it does not return.

    Raises:
      WorkloadError: when the function is called, with the leaves that it updated.
    """
    if not any(map(_is_mutable, _nodes((tuple(workload.args), dict(workload.kwargs))))):
        return fn

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
            raise _error(workload, lost, args, kwargs)
        return result

    return call


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
        f"workload {workload.name}: fn updates arguments in place ({', '.join(lost[:_LISTED])}"
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


def refuse_empty_program(workload: Workload, traced: Any, lowered: Any) -> None:
    """Refuses a program without parameters, outputs and effects: all of its totals would be 0.

    Args:
      traced, lowered: `jax.stages.Traced` and `Lowered` of the step.

    Raises:
      WorkloadError: the program is empty.
    """
    jaxpr = traced.jaxpr.jaxpr
    if jaxpr.outvars or jaxpr.effects or lowered._lowering.compile_args["kept_var_idx"]:
        return
    raise WorkloadError(
        f"workload {workload.name}: fn returns nothing and its program uses no argument, so XLA "
        "would compile an empty program; a step that updates Python objects in place does that "
        "under jax.jit; fix: pass the state as an argument and return it, or give the nnx.jit "
        "function with its modules in args="
    )
