"""A workload with a change: one that can lower its memory, or another policy.

The compiling child calls `changed_workload` like a user's function, so the parent imports no jax.
"""

import functools
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from xlapipe.compile.lowering.chosen_policy import apply_policy, apply_to_libraries
from xlapipe.compile.lowering.jit_parameters import jit_parameters, jit_shardings
from xlapipe.compile.lowering.load_workload import load_workload, named_value
from xlapipe.compile.lowering.meshes import is_spec
from xlapipe.compile.lowering.names import named_leaves, positional_names
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.compile.lowering.wrapped_steps import NnxJit, wrapped_step
from xlapipe.errors import ParameterError, WorkloadError
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload

_AXIS = "shard"
_Axes = TypeVar("_Axes")
_WORD = re.compile(r"\w+")
_SHARDS = 2


def changed_workload(
    *,
    reference: Mapping[str, str | None],
    donate: Sequence[str] = (),
    halve: str | None = None,
    shard_size: str | None = None,
    shard_leaves: Mapping[str, int] | None = None,
    more_devices: int | None = None,
    specs: Mapping[str, Sequence[Any]] | None = None,
    carried: Mapping[str, str] | None = None,
    unreturned: Sequence[int] = (),
    constants_as_arguments: bool = False,
    policy: Mapping[str, Any] | None = None,
    devices: int | None = None,
) -> Workload:
    """The workload of a reference with one change.

    Args:
      halve: name of an integer argument of the workload's function, which is halved.
      shard_size: name of such an argument; the dimensions of the step's arguments that depend on
        it are sharded over two devices.
      shard_leaves: the dimension to shard over two devices, by path of the arguments' leaf.
      more_devices: value of the argument `devices` of the workload's function.
      constants_as_arguments: of the program, of what the step captures.
      unreturned: numbers of outputs, in the order of their leaves, that the step returns no more.
      specs: of leaves of the arguments, by path, over the workload's own mesh.
      carried: the outputs that replace arguments, which get their specs too.

    Raises:
      WorkloadError: the change is not possible for this workload.
    """
    original = WorkloadReference.from_json(reference)
    if halve is not None:
        original = _halved(original, halve)
    if more_devices is not None:
        original = _over_devices(original, more_devices)
    if policy is not None:  # before the module is imported, which may call jax.grad then
        apply_policy(PolicyChange.from_json(policy))
    # The variable is in the child's environment, since jax reads it when it is imported.
    assert jax.config.jax_use_simplified_jaxpr_constants or not constants_as_arguments
    workload = load_workload(original, devices=devices)
    apply_to_libraries()
    if donate:
        workload = _donating(workload, donate)
    if unreturned:
        workload = _returning_less(workload, frozenset(unreturned))
    if shard_size is not None:
        smaller = load_workload(_halved(original, shard_size))
        workload = sharded(workload, axes_that_differ(workload, smaller, _SHARDS), _SHARDS)
    if specs is not None:
        workload = resharded(workload, axes_by_number(workload, specs), carried or {})
    if shard_leaves is not None:
        workload = sharded(workload, axes_by_number(workload, shard_leaves), _SHARDS)
    return workload


def _donating(workload: Workload, names: Sequence[str]) -> Workload:
    """A step that is jitted already is jitted again, with its static arguments and options."""
    step = wrapped_step(workload)
    if step is None:
        return replace(workload, donate_argnums=(), donate_argnames=tuple(names))
    jitted = _jit_with_donation(step.fn, names) if not step.args and not step.kwargs else None
    if jitted is None:
        raise WorkloadError(
            f"workload {workload.name}: its step is wrapped already, so its donation cannot be "
            f"changed from outside; fix: donate {', '.join(names)} in its own jit"
        )
    return replace(workload, fn=jitted)


def _returning_less(workload: Workload, numbers: frozenset[int]) -> Workload:
    """The workload without some of its outputs."""
    original = workload.fn
    if workload.out_specs is not None or wrapped_step(workload) is not None:
        raise WorkloadError(
            f"workload {workload.name}: its outputs cannot be changed from outside of its jit "
            "or out_specs; fix: return less in the step"
        )

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> list[Any]:
        leaves = enumerate(jax.tree.leaves(original(*args, **kwargs)))
        return [leaf for number, leaf in leaves if number not in numbers]

    return replace(workload, fn=step, carry={})


def _jit_with_donation(fn: Any, names: Sequence[str]) -> Any:
    """A jitted function with other donated arguments; None if its jit cannot be repeated."""
    jit_options = jit_parameters(fn)
    if jit_options is None or jit_options.device is not None or jit_options.backend is not None:
        return None
    if any(jit_shardings(fn)) or any(
        (*jit_options.in_layouts_leaves, *jit_options.out_layouts_leaves)
    ):
        return None
    new_options: dict[str, Any] = {
        "donate_argnames": tuple(names),
        "static_argnums": jit_options.static_argnums or None,
        "static_argnames": jit_options.static_argnames or None,
        "keep_unused": jit_options.keep_unused,
    }
    if isinstance(fn, type(jax.jit(len))):
        options = dict(jit_options.compiler_options_kvs)
        inner: Any = fn
        return jax.jit(inner.__wrapped__, compiler_options=options, **new_options)
    if not NnxJit.accepts(fn):
        return None
    from flax import nnx

    jitted = nnx.jit(fn.fun, **new_options)
    return jitted if type(jitted) is type(fn) else None  # `graph=False` has another type


def _over_devices(reference: WorkloadReference, devices: int) -> WorkloadReference:
    given = dict(reference.arguments or {})
    if not isinstance(given.get("devices", _default(reference, "devices")), int):
        raise WorkloadError(
            f"{reference}: its function has no integer argument `devices`; fix: give it one, over "
            "which it shards its arguments"
        )
    return replace(reference, arguments={**given, "devices": devices})


def _halved(reference: WorkloadReference, name: str) -> WorkloadReference:
    given = dict(reference.arguments or {})
    value = given.get(name, _default(reference, name))
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise ParameterError(
            f"{reference}: expected an integer `{name}` of 2 or more, found {value!r:.60}; fix: "
            "name an integer argument of the workload's function"
        )
    return replace(reference, arguments={**given, name: value // 2})


def _default(reference: WorkloadReference, name: str) -> Any:
    """The default of a parameter of the workload's function; None if it has no such parameter."""
    value = named_value(reference)
    if isinstance(value, Workload) or not callable(value):
        return None
    parameter = inspect.signature(value).parameters.get(name)
    return parameter.default if parameter is not None else None


def sharded(workload: Workload, axis_of_leaf: Mapping[int, int], devices: int) -> Workload:
    """The workload over a mesh of one axis; XLA chooses how outputs and other values are sharded.

    `axis_of_leaf` has the dimension to shard by the number of a leaf of the positional arguments;
    other leaves are replicated.
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
    _refuse_named(workload, axis_of_leaf, len(leaves))
    specs = [PartitionSpec()] * len(leaves)
    for number, axis in axis_of_leaf.items():
        specs[number] = PartitionSpec(*[None] * axis, _AXIS)
    return replace(workload, mesh={_AXIS: devices}, in_specs=jax.tree.unflatten(tree, specs))


def _refuse_named(workload: Workload, numbers: Iterable[int], count: int) -> None:
    if any(number >= count for number in numbers):
        raise WorkloadError(
            f"workload {workload.name}: arguments by keyword get no in_specs; fix: pass what is "
            "sharded by position"
        )


def resharded(
    workload: Workload, spec_of_leaf: Mapping[int, Sequence[Any]], carried: Mapping[str, str]
) -> Workload:
    """The workload with other shardings of some leaves, over its own mesh.

    The outputs at the paths that are `carried` by arguments get the specs of these.
    """
    leaves, tree = jax.tree.flatten(tuple(workload.args))
    _refuse_named(workload, spec_of_leaf, len(leaves))
    specs = {
        number: PartitionSpec(
            *(tuple(axes) if isinstance(axes, list) else axes for axes in entries)
        )
        for number, entries in spec_of_leaf.items()
    }
    if workload.mesh is None:  # of the arguments themselves
        for number, spec in specs.items():
            leaf = leaves[number]
            sharding = NamedSharding(leaf.sharding.mesh, spec)
            leaves[number] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return replace(workload, args=jax.tree.unflatten(tree, leaves))
    given = PartitionSpec() if workload.in_specs is None else workload.in_specs
    own = jax.tree.leaves(
        jax.tree.broadcast(given, tuple(workload.args), is_leaf=is_spec), is_leaf=is_spec
    )
    changed = [specs.get(number, spec) for number, spec in enumerate(own)]
    in_specs = jax.tree.unflatten(tree, changed)
    if workload.out_specs is None:
        return replace(workload, in_specs=in_specs)
    names = positional_names(workload.fn, len(workload.args))
    start, new = 0, {}
    for name, its in zip(names, in_specs, strict=True):
        end = start + len(jax.tree.leaves(its, is_leaf=is_spec))
        if name in carried and any(start <= number < end for number in specs):
            new[carried[name]] = its
        start = end
    out_specs = jax.tree.map_with_path(
        lambda path, spec: new.pop(f"out{jax.tree_util.keystr(path)}", spec),
        workload.out_specs,
        is_leaf=is_spec,
    )
    if new:
        raise WorkloadError(
            f"workload {workload.name}: out_specs has no one spec for {', '.join(new)}, which is "
            "returned for what is sharded; fix: state the specs in the workload"
        )
    return replace(workload, in_specs=in_specs, out_specs=out_specs)


def axes_by_number(workload: Workload, axis_of_path: Mapping[str, _Axes]) -> dict[int, _Axes]:
    """The axes by number of the leaf, as `sharded` and `resharded` take them.

    Wrappers such as `eqx.filter_jit` pass leaves in another order, and name them in other ways.
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
