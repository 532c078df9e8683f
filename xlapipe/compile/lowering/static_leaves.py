"""Modules that contain arrays and other values, as arguments of a plain function.

Equinox modules are trees with leaves that are not arrays, such as activation functions. As under
`eqx.filter_jit`, the arrays are arguments, and the rest is static.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.tree_util import register_pytree_node_class

from xlapipe.workload import Workload


@register_pytree_node_class
class StaticLeaf:
    """A leaf that is not an array, as a node without leaves."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, children: tuple[()]) -> "StaticLeaf":
        return cls(value)


def holds_static_leaves(workload: Workload) -> bool:
    """Whether an argument is, or holds, an Equinox module with leaves that are not arrays."""
    return any(
        is_module_with_static_leaves(argument)
        for argument in (*workload.args, *workload.kwargs.values())
    )


def is_module_with_static_leaves(tree: Any) -> bool:
    """Whether a tree holds an Equinox module and leaves that are not arrays."""
    modules = jax.tree.leaves(tree, is_leaf=_is_equinox_module)
    return any(map(_is_equinox_module, modules)) and not all(map(_is_array, jax.tree.leaves(tree)))


def without_static_leaves(tree: Any) -> Any:
    """The tree with its leaves that are not arrays as `StaticLeaf` nodes."""
    return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else StaticLeaf(leaf), tree)


def with_static_leaves(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, called with the values of `StaticLeaf` nodes in their place."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(
            lambda leaf: leaf.value if isinstance(leaf, StaticLeaf) else leaf,
            (args, kwargs),
            is_leaf=lambda node: isinstance(node, StaticLeaf),
        )
        return without_static_leaves(fn(*args, **kwargs))

    return call


def _is_equinox_module(node: Any) -> bool:
    return any(
        base.__module__.startswith("equinox.") and base.__name__ == "Module"
        for base in type(node).__mro__
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic))
