"""The program as its author wrote it: named leaves of arguments and outputs.

XLA knows parameter numbers and output indices; people know pytree paths. This is the map
between them, recorded when the program is lowered.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from xlapipe.plan.hlo import SourceLine
from xlapipe.plan.plan import Plan

# Mesh axes that each dimension is split over, as in jax's PartitionSpec; dimensions behind the
# last entry are whole.
Spec = tuple[str | tuple[str, ...] | None, ...]


class _Leaf:
    """What the leaves of arguments and of outputs have in common: a form as plain data."""

    __slots__ = ()

    def to_json(self: Any) -> dict[str, Any]:
        """Its fields; `spec` is left out where there is none."""
        data = asdict(self)
        if self.spec is None:
            del data["spec"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another form."""
        spec = data.get("spec")
        if spec is not None:
            if not isinstance(spec, (list, tuple)):
                raise TypeError(f"spec {spec!r:.60} is no list of axes of a mesh")
            spec = tuple(_spec_entry(entry) for entry in spec)
        return cls(**{**data, "shape": tuple(data["shape"]), "spec": spec})


def _spec_entry(entry: Any) -> str | tuple[str, ...] | None:
    axes = entry if isinstance(entry, (list, tuple)) else [entry] if entry is not None else []
    if not all(isinstance(axis, str) for axis in axes):
        raise TypeError(f"a spec's entry {entry!r:.60} names no axes of a mesh")
    return tuple(axes) if isinstance(entry, (list, tuple)) else entry


@dataclass(frozen=True, slots=True)
class ArgumentLeaf(_Leaf):
    """One leaf of the arguments.

    Attributes:
      path: parameter name of the function and path in its tree, e.g. `cache[0]['k']`.
      size_bytes: on one device.
      donated: requested by the author; whether it was answered, the plan tells.
      parameter_number: in the compiled module; None if the program does not use the leaf.
      spec: how it lies over the mesh; None for a program of one device.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    donated: bool
    parameter_number: int | None
    spec: Spec | None = None


@dataclass(frozen=True, slots=True)
class OutputLeaf(_Leaf):
    """One leaf of the outputs.

    Attributes:
      size_bytes: on one device.
      index: its place in XLA's flat output tuple.
      spec: as of `ArgumentLeaf`; where the author named none, the one that XLA chose.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    index: int
    spec: Spec | None = None


@dataclass(frozen=True, slots=True)
class RequestedDot:
    """A dot of the module before optimisation."""

    op_name: str | None
    shape: str
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class RequestedCollective:
    """A collective of the traced program, before jax and XLA drop or merge any.

    Attributes:
      kind: XLA's, e.g. `all-gather`.
      op_name: scopes and jax's primitive, e.g. `transpose(jvp(layer_0))/reduce_scatter`.
      shapes: dtype and dimensions of its operands on one device, e.g. `bfloat16[8,16]`.
      executions: how often it runs in a step; None in a while loop and in a branch.
    """

    kind: str
    op_name: str
    shapes: tuple[str, ...]
    executions: int | None
    source: SourceLine | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RequestedCollective":
        """What `dataclasses.asdict` made of one.

        Raises:
          KeyError, TypeError: for data of another form.
        """
        source = data["source"]
        given = {**data, "shapes": tuple(data["shapes"])}
        return cls(**{**given, "source": SourceLine(**source) if source is not None else None})


@dataclass(frozen=True)
class Program:
    """A plan together with the names of the author.

    Attributes:
      gemm_policy: `auto`, `cublas` or `triton`.
      requested_dots, requested_collectives: None where the dump does not tell.
      same_buffer: path of another argument leaf that is the same array, by path; known only
        where the program was lowered from concrete arrays.
    """

    plan: Plan
    gemm_policy: str = "auto"
    arguments: tuple[ArgumentLeaf, ...] = ()
    outputs: tuple[OutputLeaf, ...] = ()
    requested_dots: tuple[RequestedDot, ...] | None = None
    requested_collectives: tuple[RequestedCollective, ...] | None = None
    same_buffer: Mapping[str, str] = field(default_factory=dict)

    def arguments_named(self, pattern: str) -> tuple[ArgumentLeaf, ...]:
        return tuple(leaf for leaf in self.arguments if matches(pattern, leaf.path))

    def outputs_named(self, pattern: str) -> tuple[OutputLeaf, ...]:
        return tuple(leaf for leaf in self.outputs if matches(pattern, leaf.path))

    def output_path(self, index: tuple[int, ...] | None) -> str:
        """The author's name of XLA's output index, or the index where there is no name."""
        for leaf in self.outputs:
            if index == (leaf.index,) or (index == () and len(self.outputs) == 1):
                return leaf.path
        return "an output" if index is None else f"output {{{','.join(map(str, index))}}}"


def matches(pattern: str, path: str) -> bool:
    """Whether `pattern` names `path` or something above it; `*` stands for any characters.

    >>> matches("cache", "cache[0]['k']"), matches("cache[*]['v']", "cache[0]['k']")
    (True, False)
    """
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(f"{expression}($|[\\[.].*)", path) is not None
