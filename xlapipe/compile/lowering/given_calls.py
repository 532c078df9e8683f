"""Calls of a workload that are stated outside of it, by the shapes of the leaves that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_map_with_path

from xlapipe.compile.lowering.names import argument_names, fn_text
from xlapipe.errors import WorkloadError
from xlapipe.workload import Workload


def with_calls(workload: Workload, calls: Sequence[Mapping[str, str]]) -> Workload:
    """The workload with further calls, in each of which some leaves have another shape.

    Args:
      calls: for each call, shapes by the path of a leaf: `5x128`, or `5x128:bfloat16` with a dtype.

    Raises:
      WorkloadError: a path or dtype is not known, or two shapes are of different rank.
    """
    return replace(workload, calls=(*workload.calls, *(_call(workload, call) for call in calls)))


def call_alone(workload: Workload, number: int) -> Workload:
    """The workload with the arguments of one of its calls; 1 is its own."""
    args = (workload.args, *workload.calls)[number - 1]
    return replace(workload, args=args, calls=(), expectations=())


def _call(workload: Workload, shapes: Mapping[str, str]) -> tuple[Any, ...]:
    left = dict(shapes)
    paths: list[str] = []

    def changed(path: str, leaf: Any) -> Any:
        paths.append(path)
        text = left.pop(path, None)
        return leaf if text is None else _reshaped(workload, path, leaf, text)

    call = tuple(
        tree_map_with_path(
            lambda path, leaf, name=name: changed(f"{name}{keystr(path)}", leaf), arg
        )
        for name, arg in zip(argument_names(workload), workload.args, strict=True)
    )
    for path in left:
        raise WorkloadError(
            f"{fn_text(workload)}: --calls names {path!r}, expected a leaf of the arguments, found "
            f"{', '.join(paths[:8])}{' …' if len(paths) > 8 else ''}; fix: name one of these"
        )
    return call


def _reshaped(workload: Workload, path: str, leaf: Any, text: str) -> Any:
    size, _, dtype = text.partition(":")
    shape = tuple(int(part) for part in size.split("x") if part)
    if not hasattr(leaf, "shape") or len(leaf.shape) != len(shape):
        found = f"shape {leaf.shape}" if hasattr(leaf, "shape") else f"a {type(leaf).__name__}"
        raise WorkloadError(
            f"{fn_text(workload)}: --calls gives {path} the shape {size}, expected one of as many "
            f"dimensions as it has, found {found}; fix: state each dimension, as in 5x128"
        )
    try:
        of = jnp.dtype(dtype or leaf.dtype)
    except TypeError:
        raise WorkloadError(
            f"{fn_text(workload)}: --calls gives {path} the dtype {dtype!r}, expected one of jax, "
            "such as float32; fix: correct its name"
        ) from None
    given = isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False)
    return jax.ShapeDtypeStruct(shape, of, sharding=leaf.sharding if given else None)
