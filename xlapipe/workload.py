"""A Workload: a step to compile, and its author's expectations of the plan.

This module imports no jax. It does not look into trees of `jax.ShapeDtypeStruct`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xlapipe.errors import WorkloadError
from xlapipe.expect import Expectation

_LONGEST_NAME = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A function to compile, abstract arguments, and expectations.

    Attributes:
      name: name of the workload, and of its folder under `hlo_dumps/`.
      fn: the step, as `jax.jit` takes it.
      args: one pytree per positional argument, of arrays, `jax.ShapeDtypeStruct`s and Python
        scalars. Shardings, memory kinds and layouts on them are kept.
      kwargs: keyword arguments, as trees like those of `args`.
      donate_argnums, donate_argnames, static_argnums, static_argnames: as in `jax.jit`. A
        function that is jitted already (`jax.jit`, `nnx.jit`, `eqx.filter_jit`) has its own.
      options: XLA options (`xla_*`), as in `compile(compiler_options=...)`.
      mesh: the size of each axis by name, over the target's devices in row-major order (see
        `xlapipe.devices.targets.topology`), or a `jax.sharding.Mesh` or `AbstractMesh`. None for
        one device, and for arguments that carry shardings over a mesh.
      explicit_axes: axes of the mesh whose shardings are part of the types (jax's
        `AxisType.Explicit`). XLA chooses the shardings of the other axes.
      in_specs: a tree of PartitionSpecs that is a prefix of `args`; None for replicated arguments.
      out_specs: the same for the outputs; None for the shardings that XLA chooses.
      kernel_bytes: by name of a Pallas kernel, bytes that one launch reads and writes, where it
        does not read its operands whole; a `cost_estimate` of `pallas_call` states the same.
      carry: the output that replaces an argument in the next call, by path, e.g. `{"state":
        "out[1]"}`; None for an argument that does not come back. Others are found by their paths.
      loop_trips: trips that a time is predicted for, of each loop whose number XLA does not know.
      expectations: checked on every compile, or only under the GEMM policy that they name.

    Raises:
      WorkloadError: a field has another form.
    """

    name: str
    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    donate_argnums: int | Sequence[int] = ()
    donate_argnames: str | Sequence[str] = ()
    static_argnums: int | Sequence[int] = ()
    static_argnames: str | Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    mesh: Any = None
    in_specs: Any = None
    out_specs: Any = None
    explicit_axes: Sequence[str] = ()
    kernel_bytes: Mapping[str, int] = field(default_factory=dict)
    carry: Mapping[str, str | None] = field(default_factory=dict)
    loop_trips: int | None = None
    expectations: Sequence[Expectation] = ()

    def __post_init__(self) -> None:
        if not (
            isinstance(self.name, str)
            and _NAME.fullmatch(self.name)
            and len(self.name) <= _LONGEST_NAME
        ):
            allowed = re.sub("[^A-Za-z0-9._-]+", "-", str(self.name)).strip("-._")[:_LONGEST_NAME]
            raise WorkloadError(
                f"workload name {self.name!r:.240}: expected letters, digits, '.', '_' and '-', at "
                f"most {_LONGEST_NAME}, since it names a folder under hlo_dumps/; fix: "
                f"name={allowed or 'step'!r}"
            )
        if not callable(self.fn):
            raise WorkloadError(
                f"workload {self.name}: fn is {self.fn!r:.60}, expected a function; fix: give the "
                "function itself, not its result"
            )
        if not isinstance(self.args, (tuple, list)):
            raise WorkloadError(
                f"workload {self.name}: args is a {type(self.args).__name__}, expected a tuple "
                "with one pytree per positional argument; fix: args=(value,) for one argument"
            )
        numbers = (("donate", self.donated), ("static", self.static_positions))
        for kind, number in ((kind, number) for kind, given in numbers for number in given):
            # A static parameter may have a default.
            if number < 0 or (kind == "donate" and number >= len(self.args)):
                raise WorkloadError(
                    f"workload {self.name}: {kind}_argnums names argument {number}, but there "
                    f"are {len(self.args)} arguments, numbered from 0; fix: {kind}_argnames=, or a "
                    f"number below {len(self.args)}"
                )
        for option in self.options:
            if not option.startswith("xla_"):
                raise WorkloadError(
                    f"workload {self.name}: option {option!r}: expected XLA options, `xla_*`; fix: "
                    "jax's settings go into jax.config.update in the module"
                )
        for expectation in self.expectations:
            if not isinstance(expectation, Expectation):
                raise WorkloadError(
                    f"workload {self.name}: expectations: expected objects of xlapipe.expect, "
                    f"found {expectation!r:.60}; fix: import them from xlapipe.expect"
                )
        for kernel, size in (*self.kernel_bytes.items(), ("", self.loop_trips)):
            if size is not None and (not isinstance(size, int) or size < 1):
                stated = f"kernel_bytes of {kernel!r}" if kernel else "loop_trips"
                raise WorkloadError(
                    f"workload {self.name}: {stated} is {size!r:.60}, expected a positive integer; "
                    "fix: leave it out if it is not known"
                )
        for path, output in self.carry.items() if isinstance(self.carry, Mapping) else [self.carry]:
            if not isinstance(path, str) or not isinstance(output, (str, type(None))):
                raise WorkloadError(
                    f"workload {self.name}: carry has {path!r:.60}: {output!r:.60}, expected the "
                    "path of an argument and that of an output, as texts; fix: "
                    "carry={'state': 'out[0]'}"
                )
        if self.mesh is None and (self.in_specs is not None or self.out_specs is not None):
            raise WorkloadError(
                f"workload {self.name}: in_specs or out_specs without a mesh; fix: "
                "mesh={'axis': size}"
            )
        for axis, size in (self.mesh_axes or {}).items():
            if not isinstance(size, int) or size < 1:
                raise WorkloadError(
                    f"workload {self.name}: mesh axis {axis!r} has size {size!r}, expected a "
                    "positive integer; fix: the number of devices along the axis"
                )
        for axis in self.explicit_axes:
            if axis not in (self.mesh_axes or {}):
                raise WorkloadError(
                    f"workload {self.name}: explicit_axes: {axis!r} is not an axis of the mesh "
                    f"{dict(self.mesh_axes or {})}; fix: name an axis of mesh="
                )

    @property
    def donated_names(self) -> tuple[str, ...]:
        """donate_argnames as a tuple."""
        return _as_tuple(self.donate_argnames, str)

    @property
    def static_positions(self) -> tuple[int, ...]:
        """static_argnums as a tuple."""
        return _as_tuple(self.static_argnums, int)

    @property
    def static_names(self) -> tuple[str, ...]:
        """static_argnames as a tuple."""
        return _as_tuple(self.static_argnames, str)

    @property
    def mesh_axes(self) -> Mapping[str, int] | None:
        """Axis names to sizes of `mesh`; None without a mesh."""
        if self.mesh is None:
            return None
        return dict(self.mesh if isinstance(self.mesh, Mapping) else self.mesh.shape)

    @property
    def donated(self) -> tuple[int, ...]:
        """donate_argnums as a tuple."""
        return _as_tuple(self.donate_argnums, int)


def _as_tuple(value: Any, item: type) -> tuple[Any, ...]:
    return (value,) if isinstance(value, item) else tuple(value)
