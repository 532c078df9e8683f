"""The arguments that a step is traced with: abstract, named, and where they are.

What a leaf carries (sharding, memory kind, layout, weak type) is kept, or refused with its path.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.api_util import shaped_abstractify
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.tree_util import keystr

from xlapipe.compile.lowering.meshes import is_spec
from xlapipe.compile.lowering.names import argument_names, named_leaves
from xlapipe.errors import WorkloadError
from xlapipe.workload import Workload

_SCALARS = (bool, int, float, complex)


class AbstractArray(jax.ShapeDtypeStruct):
    """A ShapeDtypeStruct that is a `jax.Array` by `isinstance`, as Equinox's filters check."""

    # jax 0.10's ShapeDtypeStruct and Array cannot be bases of one class.
    __class__ = property(lambda self: jax.Array)


@dataclass(frozen=True)
class CallArguments:
    """Arguments as they are passed to the step.

    Attributes:
      args, kwargs: trees of ShapeDtypeStruct and Python scalars; static arguments as they are.
      static: positions and names of arguments that the workload names as static.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    static: frozenset[int | str]

    @property
    def dynamic(self) -> tuple[Any, ...]:
        """The arguments that are not static, as one tree."""
        kwargs = {name: value for name, value in self.kwargs.items() if name not in self.static}
        args = [arg for number, arg in enumerate(self.args) if number not in self.static]
        return (*args, kwargs)


def call_arguments(
    workload: Workload,
    mesh: AbstractMesh,
    device: Any,
    *,
    array_type: type[jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct,
    wrapped: bool,
    committed: bool = True,
) -> CallArguments:
    """The workload's arguments, abstract; on `device` if they are committed, or else anywhere."""
    specs = _specs(workload)
    place = _Place(workload, mesh, device, array_type, wrapped, committed, {})
    static = _static_positions(workload)
    args = tuple(
        arg if number in static else place.tree(name, arg, spec)
        for number, (name, arg, spec) in enumerate(
            zip(argument_names(workload), workload.args, specs, strict=True)
        )
    )
    names = frozenset(workload.static_names)
    kwargs = {
        name: value if name in names else place.tree(name, value, _NO_SPEC)
        for name, value in workload.kwargs.items()
    }
    return CallArguments(args, kwargs, static | names)


# Means "no in_specs": a leaf without its own sharding is replicated if there is a mesh.
_NO_SPEC = object()


def _specs(workload: Workload) -> Sequence[Any]:
    """For each positional argument, a tree of specs that is a prefix of it."""
    if workload.in_specs is None:
        return [_NO_SPEC] * len(workload.args)
    try:
        return tuple(jax.tree.broadcast(workload.in_specs, tuple(workload.args), is_leaf=is_spec))
    except ValueError as error:
        text = str(error).replace("broadcast_prefix prefix_tree", "in_specs")
        raise WorkloadError(
            f"workload {workload.name}: in_specs are not a prefix of args: {text}; fix: give "
            "each of args a PartitionSpec, or a tree of them of the form of that argument"
        ) from error


def _static_positions(workload: Workload) -> frozenset[int]:
    names = argument_names(workload)
    by_name = {number for number, name in enumerate(names) if name in workload.static_names}
    return frozenset({*workload.static_positions, *by_name})


@dataclass(frozen=True)
class _Place:
    """Makes leaves abstract, on the mesh or on the device.

    Of an object of `shared_objects`, `abstract_objects` has by its id the one with abstract leaves.
    """

    workload: Workload
    mesh: AbstractMesh
    device: Any
    array_type: type[jax.ShapeDtypeStruct]
    wrapped: bool
    committed: bool
    abstract_objects: dict[int, Any]

    def tree(self, name: str, tree: Any, specs: Any) -> Any:
        """A tree of one argument, with abstract leaves."""
        if specs is _NO_SPEC:
            specs = jax.tree.map(lambda _: _NO_SPEC, tree)
        return self._node(name, tree, specs)

    def _node(self, name: str, node: Any, specs: Any) -> Any:
        """A tree with abstract leaves; an object that is in it twice stays one object."""

        def abstract(path: tuple[Any, ...], item: Any, spec: Any) -> Any:
            item_name = f"{name}{keystr(path)}"
            if item is not node and is_shared_object(item):
                return self._node(item_name, item, spec)
            return self._leaf(item_name, item, spec)

        if is_shared_object(node) and id(node) in self.abstract_objects:
            return self.abstract_objects[id(node)]
        made = jax.tree_util.tree_map_with_path(
            abstract, node, specs, is_leaf=lambda item: item is not node and is_shared_object(item)
        )
        if is_shared_object(node):
            self.abstract_objects[id(node)] = made
        return made

    def _leaf(self, path: str, leaf: Any, spec: Any) -> Any:
        if isinstance(leaf, (*_SCALARS, jax.Ref)):
            return leaf  # jit gives a scalar a weak type, and lowers a reference as it is
        if isinstance(leaf, type) or not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            if self.wrapped:
                return leaf  # static, or the wrapper refuses it
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} is {leaf!r:.60}, expected an "
                "array or a jax.ShapeDtypeStruct; fix: name the parameter in static_argnames=, "
                "bind it with functools.partial, or give eqx.filter_jit(fn) for Equinox's modules"
            )
        return self.array_type(
            leaf.shape,
            self._dtype(path, leaf),
            sharding=self._with_layout(path, leaf, self._sharding(path, leaf, spec)),
            weak_type=getattr(leaf, "weak_type", False),
            **({"is_ref": True} if getattr(leaf, "is_ref", False) else {}),  # not in jax 0.10
        )

    def _dtype(self, path: str, leaf: Any) -> Any:
        try:
            return jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        except TypeError:
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} is a {type(leaf).__name__} with "
                f"dtype {leaf.dtype!r:.60}, expected a dtype of numpy or jax; fix: "
                "jax.ShapeDtypeStruct(shape, jnp.float32), or another dtype of jax"
            ) from None

    def _sharding(self, path: str, leaf: Any, spec: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if sharding is not None and not isinstance(sharding, (Sharding, PartitionSpec)):
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} is a {type(leaf).__name__} with a "
                f"{type(sharding).__name__} as its sharding, expected one of jax; fix: "
                "jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree), "
                "with sharding= for an array over several devices"
            )
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            return self._own_named(path, leaf, sharding, spec)
        kind = _memory_kind(self.workload, path, sharding)
        if self.device is not None:
            if kind is None and not self.committed:
                return None
            return SingleDeviceSharding(self.device, memory_kind=kind)
        if kind is not None:
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} is on one device, in memory "
                f"{kind!r}, and the program is over several; fix: give it a NamedSharding over "
                f"the mesh with memory_kind={kind!r}"
            )
        if spec is _NO_SPEC:
            # Without a mesh on the workload, jax and XLA decide, as they would for the user.
            return None if self.workload.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        _refuse_misfit(self.workload, path, leaf, spec or PartitionSpec(), self.mesh.shape)
        return NamedSharding(self.mesh, spec or PartitionSpec())

    def _own_named(self, path: str, leaf: Any, own: NamedSharding, spec: Any) -> Any:
        if spec is not _NO_SPEC:
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} has its own sharding, {own.spec}, "
                "and in_specs give another; fix: leave one of them out"
            )
        _refuse_misfit(self.workload, path, leaf, own.spec, dict(own.mesh.shape))
        if self.workload.mesh is None:
            return own
        return NamedSharding(self.mesh, own.spec, memory_kind=own.memory_kind)

    def _with_layout(self, path: str, leaf: Any, sharding: Any) -> Any:
        layout = getattr(getattr(leaf, "format", None), "layout", None)
        if layout is None:
            return sharding
        if not isinstance(layout, Layout):
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} has layout {layout}, expected a "
                "jax.experimental.layout.Layout; fix: state the layout, since xlapipe compiles one "
                "program with the layouts it is given"
            )
        if tuple(layout.major_to_minor) == tuple(range(len(leaf.shape))) and not layout.tiling:
            return sharding
        if isinstance(getattr(sharding, "mesh", None), AbstractMesh):
            raise WorkloadError(
                f"workload {self.workload.name}: argument {path} has layout {layout} and is over "
                "several devices, which jax cannot lower without them; fix: leave the layout out"
            )
        return Format(layout, sharding)


def refuse_changed_leaves(workload: Workload, arguments: CallArguments) -> None:
    """Compares each leaf as it is passed with the user's, as jax sees both."""
    given = jax.tree.leaves((tuple(workload.args), dict(workload.kwargs)))
    passed = jax.tree.leaves((arguments.args, dict(arguments.kwargs)))
    for number, (leaf, abstract) in enumerate(zip(given, passed, strict=True)):
        if leaf is not abstract and not _alike(leaf, abstract):
            path = list(named_leaves(workload))[number][0]
            raise WorkloadError(
                f"workload {workload.name}: argument {path} is passed as {_facts(abstract)}, "
                f"expected {_facts(leaf)} as the user gave it; this is a bug of xlapipe, which "
                "refuses to plan another program than jax compiles; fix: report it"
            )


def _alike(leaf: Any, abstract: Any) -> bool:
    # Asking jax is slow, and needed where it makes another dtype of a leaf's.
    same = leaf.shape == abstract.shape and leaf.dtype == abstract.dtype
    weak = getattr(leaf, "weak_type", False) == abstract.weak_type
    return (same and weak) or _facts(leaf) == _facts(abstract)


def _facts(leaf: Any) -> tuple[Any, ...]:
    """What the program depends on of a leaf, except a sharding that the workload gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax warns of a dtype that it narrows, when it is traced
        aval = shaped_abstractify(leaf)
    return aval.shape, aval.dtype, aval.weak_type


def _memory_kind(workload: Workload, path: str, sharding: Any) -> str | None:
    """The memory that a leaf asks for; None for the default one."""
    if sharding is None or isinstance(sharding, NamedSharding):
        kind = getattr(sharding, "memory_kind", None)
    elif isinstance(sharding, SingleDeviceSharding):
        kind = sharding.memory_kind
        device: Any = next(iter(sharding.device_set))
        if kind == device.default_memory().kind:
            kind = None
    elif len(sharding.device_set) == 1:
        kind = None
    else:
        raise WorkloadError(
            f"workload {workload.name}: argument {path} has a {type(sharding).__name__} over "
            f"{len(sharding.device_set)} devices, expected a NamedSharding; fix: shard it with "
            "jax.sharding.NamedSharding over a mesh"
        )
    return None if kind == "device" else kind


def _refuse_misfit(
    workload: Workload, name: str, leaf: Any, spec: Any, mesh: Mapping[str, int]
) -> None:
    """Raises WorkloadError for a spec that does not fit the leaf or the mesh."""
    where = f"workload {workload.name}: {name} ({leaf.dtype}{list(leaf.shape)}) has the spec {spec}"
    if len(spec) > len(leaf.shape):
        raise WorkloadError(
            f"{where}: {len(spec)} entries for {len(leaf.shape)} dimensions; fix: leave some out"
        )
    for number, (size, entry) in enumerate(zip(leaf.shape, spec, strict=False)):
        axes = (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()
        for axis in axes:
            if axis not in mesh:
                raise WorkloadError(
                    f"{where}: the mesh has no axis {axis!r}; it has {', '.join(mesh) or 'none'}; "
                    "fix: name one of these in the spec"
                )
        parts = prod(mesh[axis] for axis in axes)
        if size % parts:
            factors = " and ".join(f"{axis!r} ({mesh[axis]})" for axis in axes)
            raise WorkloadError(
                f"{where}: mesh axis {factors} does not divide dimension {number} of {size}; fix: "
                f"leave the dimension whole, or make it a multiple of {parts}"
            )


def shard_bytes(leaf: Any, sharding: Any) -> int:
    """Packed bytes of a leaf on one device, as in XLA; of the whole leaf without `sharding`.

    XLA stores elements of fewer than 8 bits next to each other: two int4 in a byte.
    """
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return -(-int(prod(shape)) * _bits(leaf.dtype) // 8)


def _bits(dtype: Any) -> int:
    """Bits of one element; those of its words if it is a typed PRNG key."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return int(dtype.itemsize) * 8
    return int(jax.dtypes.itemsize_bits(dtype))


def is_shared_object(node: Any) -> bool:
    """Whether a node of a tree is a variable, module, optimizer or another object of Flax's nnx."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, (nnx.Variable, nnx.Pytree))
