"""A Workload: one step to compile, with what its author expects of the plan.

This module imports no jax: trees of `jax.ShapeDtypeStruct` pass through it untouched.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xlapipe.errors import WorkloadError
from xlapipe.expect import Expectation

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A function to compile, abstract arguments, and expectations.

    Attributes:
      name: also the name of its folder under `hlo_dumps/`.
      fn: the step, as `jax.jit` takes it.
      args: pytrees of `jax.ShapeDtypeStruct`, one per positional argument.
      donate_argnums: as in `jax.jit`.
      options: XLA options (`xla_*`), as in `compile(compiler_options=...)`.
      mesh: axis names to sizes, laid over the target's devices row by row (see
        `xlapipe.targets.topology`). None for one device.
      explicit_axes: axes of the mesh whose shardings are part of the types (jax's
        `AxisType.Explicit`); of the others XLA finds them.
      in_specs, out_specs: PartitionSpecs, as trees that are prefixes of `args` and of the
        outputs; None for replicated arguments, and for outputs as XLA shards them.
      expectations: held on every compile, or under the GEMM policy that they name.

    Raises:
      WorkloadError: a field that is not of its form.
    """

    name: str
    fn: Callable[..., Any]
    args: Sequence[Any]
    donate_argnums: int | Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] | None = None
    in_specs: Any = None
    out_specs: Any = None
    explicit_axes: Sequence[str] = ()
    expectations: Sequence[Expectation] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise WorkloadError(
                f"workload name {self.name!r}: expected letters, digits, '.', '_' and '-', since "
                "it names a folder under hlo_dumps/"
            )
        if not callable(self.fn):
            raise WorkloadError(f"workload {self.name}: fn is {self.fn!r}, expected a function")
        if not isinstance(self.args, (tuple, list)):
            raise WorkloadError(
                f"workload {self.name}: args is a {type(self.args).__name__}, expected a tuple "
                "with one pytree per positional argument"
            )
        for number in self.donated:
            if not 0 <= number < len(self.args):
                raise WorkloadError(
                    f"workload {self.name}: donate_argnums names argument {number}, but there "
                    f"are {len(self.args)} arguments, numbered from 0"
                )
        for option in self.options:
            if not option.startswith("xla_"):
                raise WorkloadError(
                    f"workload {self.name}: option {option!r}: expected XLA options, `xla_*`"
                )
        for expectation in self.expectations:
            if not isinstance(expectation, Expectation):
                raise WorkloadError(
                    f"workload {self.name}: {expectation!r} is no expectation; "
                    "see xlapipe.expect for the vocabulary"
                )
        if self.mesh is None and (self.in_specs is not None or self.out_specs is not None):
            raise WorkloadError(f"workload {self.name}: in_specs or out_specs without a mesh")
        for axis, size in (self.mesh or {}).items():
            if not isinstance(size, int) or size < 1:
                raise WorkloadError(
                    f"workload {self.name}: mesh axis {axis!r} is of {size!r} devices, expected a "
                    "whole number of 1 or more"
                )
        for axis in self.explicit_axes:
            if axis not in (self.mesh or {}):
                raise WorkloadError(
                    f"workload {self.name}: explicit_axes name {axis!r}, which is no axis of the "
                    f"mesh {dict(self.mesh or {})}"
                )

    @property
    def donated(self) -> tuple[int, ...]:
        """donate_argnums as a tuple."""
        numbers = self.donate_argnums
        return (numbers,) if isinstance(numbers, int) else tuple(numbers)

    @property
    def device_count(self) -> int:
        """Devices that the mesh asks for."""
        count = 1
        for size in (self.mesh or {}).values():
            count *= size
        return count
