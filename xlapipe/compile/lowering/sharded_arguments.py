"""A workload of one device, sharded over several by its arguments."""

import re
from collections.abc import Mapping
from dataclasses import replace

import jax
from jax.sharding import PartitionSpec

from xlapipe.compile.lowering.names import named_leaves
from xlapipe.errors import WorkloadError
from xlapipe.workload import Workload

_AXIS = "shard"
_WORD = re.compile(r"\w+")


def sharded(workload: Workload, axis_of_leaf: Mapping[int, int], devices: int) -> Workload:
    """The workload over a mesh of one axis; XLA chooses how outputs and other values are sharded.

    Args:
      axis_of_leaf: the dimension to shard of each leaf of the positional arguments, by number.
        Other leaves are replicated.

    Raises:
      WorkloadError: the workload has a mesh already, or there is nothing to shard.
    """
    if workload.mesh is not None:
        raise WorkloadError(
            f"workload {workload.name}: it has a mesh already; fix: change the mesh in the workload"
        )
    if not axis_of_leaf:
        raise WorkloadError(
            f"workload {workload.name}: no dimension of its arguments is divisible by {devices}; "
            "fix: choose sizes that are"
        )
    leaves, tree = jax.tree.flatten(tuple(workload.args))
    specs = [_spec(axis_of_leaf.get(number)) for number in range(len(leaves))]
    return replace(workload, mesh={_AXIS: devices}, in_specs=jax.tree.unflatten(tree, specs))


def axes_by_number(workload: Workload, axis_of_path: Mapping[str, int]) -> dict[int, int]:
    """The axes by number of the leaf, as `sharded` takes them.

    Wrappers such as `eqx.filter_jit` pass leaves in another order, and name them in other ways.

    Raises:
      WorkloadError: a path of no leaf.
    """
    wanted = {_words(path): axis for path, axis in axis_of_path.items()}
    words = [_words(path) for path, _ in named_leaves(workload)]
    if missing := wanted.keys() - set(words):
        raise WorkloadError(
            f"workload {workload.name}: {len(missing)} of {len(wanted)} leaves to shard are not "
            "among its arguments; fix: shard them in the workload"
        )
    return {number: wanted[key] for number, key in enumerate(words) if key in wanted}


def _words(path: str) -> tuple[str, ...]:
    words = _WORD.findall(path)
    return tuple(words[:-1] if words[-1:] == ["value"] else words)


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, _AXIS)


def axes_that_differ(workload: Workload, other: Workload, devices: int) -> dict[int, int]:
    """The first dimension of each leaf that has another size in `other`, if it can be sharded.

    If the workloads differ in their batch, these are the dimensions that hold it.
    """
    leaves, others = (jax.tree.leaves(tuple(item.args)) for item in (workload, other))
    axes: dict[int, int] = {}
    for number, pair in enumerate(zip(leaves, others, strict=True)):
        sizes = zip(*(getattr(leaf, "shape", ()) for leaf in pair), strict=True)
        for axis, (size, other_size) in enumerate(sizes):
            if size != other_size and size % devices == 0:
                axes.setdefault(number, axis)
    return axes
