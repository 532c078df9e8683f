"""The program as its author wrote it: named leaves of arguments and outputs.

XLA uses parameter numbers and output indices; authors use pytree paths. This module maps one to
the other; the mapping is recorded when the program is lowered.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from xlapipe.files.typed_data import Count, Natural
from xlapipe.plans.buffers import BufferAllocation
from xlapipe.plans.call_facts import CallFacts
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.plans.plan import Plan

# A part of a path in a pytree, with the dot of an attribute.
PATH_KEY = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\]|\.?[^.\[\]]+")
# Mesh axes that each dimension is split over, as in jax's PartitionSpec; dimensions after the
# last entry are not split.
Spec = tuple[str | tuple[str, ...] | None, ...]


def spec_axes(spec: Spec | None, mesh: Mapping[str, int] | None = None) -> Spec:
    """The spec as XLA sees it: without axes of one device and whole dimensions at its end."""
    entries: list[str | tuple[str, ...] | None] = []
    for entry in spec or ():
        axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        split = tuple(axis for axis in axes if mesh is None or mesh.get(axis) != 1)
        entries.append(split[0] if len(split) == 1 else split or None)
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)


def spec_text(spec: Spec | None, name: str = "P") -> str:
    """As a user writes it: `P('data', None)`."""
    return f"{name}({', '.join(map(repr, spec or ()))})"


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """One leaf of the arguments.

    Attributes:
      path: parameter name of the function and path in its tree, e.g. `cache[0]['k']`.
      size_bytes: on one device.
      donated: whether the author donated it; the plan shows whether XLA used the donation.
      parameter_number: in the compiled module; None if the program does not use the leaf.
      spec: how it is sharded over the mesh; None for a program on one device.
      memory_kind: jax's name of the memory that it is in, e.g. `pinned_host`; None for the
        device's own.
      donation_dropped_by: the setting of jax that drops the author's donation of it, e.g.
        `jax_debug_nans`; None if none does.
      same_as: path of another leaf that is the same array; None if none is, or if that is unknown,
        as of abstract arguments.
    """

    path: str
    shape: tuple[Natural, ...]
    dtype: str
    size_bytes: Natural
    donated: bool
    parameter_number: Natural | None
    spec: Spec | None = None
    memory_kind: str | None = None
    donation_dropped_by: str | None = None
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """One leaf of the outputs.

    Attributes:
      size_bytes: on one device.
      index: position in XLA's flat output tuple.
      spec: as in `ArgumentLeaf`; if the author gave none, the one that XLA chose.
      memory_kind: as in `ArgumentLeaf`.
      constant: whether it depends on no argument.
    """

    path: str
    shape: tuple[Natural, ...]
    dtype: str
    size_bytes: Natural
    index: Natural
    spec: Spec | None = None
    memory_kind: str | None = None
    constant: bool = False


@dataclass(frozen=True, slots=True)
class RequestedDot:
    """A dot of the module before optimisation."""

    op_name: str | None
    shape: str
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class RequestedCollective:
    """A collective of the traced program, before jax and XLA remove or merge any.

    Attributes:
      op_name: name scopes and jax's primitive, e.g. `transpose(jvp(layer_0))/reduce_scatter`.
      shapes: dtype and dimensions of its operands on one device, e.g. `bfloat16[8,16]`.
      executions: how often it runs per step; None inside a while loop or a branch.
    """

    kind: str
    op_name: str
    shapes: tuple[str, ...]
    executions: int | None
    source: SourceLine | None


class KeptIn(StrEnum):
    """The memory that keeps a value of the forward pass for the backward pass.

    CARRY is what a loop's body returns as its carry: not the value is kept, but the input of each
    iteration, on the device, which a policy decides about only under a name that the body gives it.
    """

    DEVICE = "device"
    HOST = "host"
    CARRY = "carry"


@dataclass(frozen=True, slots=True)
class NamedValue:
    """Values of the forward pass of one name (`jax.ad_checkpoint.checkpoint_name`) and shape.

    Attributes:
      shape: shape of one iteration of a loop.
      trips: iterations whose values are kept at once; 1 outside of loops.
      kept: where jax keeps them for the backward pass; None if the backward pass does not use
        them, or computes them again.
      count: number of values; those of all iterations are one.
      size_bytes: size of all, on all devices.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trips: int
    kept: KeptIn | None
    count: int
    size_bytes: int

    def __str__(self) -> str:
        loop = f" of each of {self.trips} iterations" if self.trips > 1 else ""
        return f"{self.name} {self.dtype}[{','.join(map(str, self.shape))}]{loop}"


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known of a step when it is lowered.

    Attributes:
      requested_collectives: those of the traced program; None for an old dump of several devices
        that lacks them.
      named_values: values of the traced program; empty also for an old dump that lacks them.
      expectations: as `expectation_to_json` writes them; None for one of a user's own class.
      mesh: axis names to sizes; None for one device.
      stated_costs, stated_trips, kernel_codes: as of `Plan`.
      dropped_updates: values that the step stored in Python objects, which jax drops.
      asked_early: questions about devices that code asked before the step was traced, and that the
        compiling machine answered, with place and answer.
      call: what jax's caches depend on in a call; None for a dump from before it was recorded.
    """

    workload: str
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]
    expectations: tuple[Mapping[str, Any] | None, ...]
    requested_collectives: tuple[RequestedCollective, ...] | None = ()
    named_values: tuple[NamedValue, ...] = ()
    mesh: Mapping[str, Count] | None = None
    stated_costs: tuple[StatedCost, ...] = ()
    stated_trips: int | None = None
    kernel_codes: tuple[KernelCode, ...] = ()
    dropped_updates: tuple[str, ...] = ()
    asked_early: tuple[str, ...] = ()
    call: CallFacts | None = None


@dataclass(frozen=True, kw_only=True)
class CompileFacts(StepFacts):
    """What is known of a compile beyond XLA's own files.

    Attributes:
      options: XLA options of the workload; in a manifest also of the GEMM policy, and extra ones.
      memory_analysis: XLA's own totals in bytes: argument, output, alias, temp; empty if XLA
        refused the plan.
      target: name of the GPU or TPU; None if unknown.
      gemm_policy: `auto`, `cublas` or `triton`.
      requested_dots: None if unknown.
      topology: hosts and GPUs per host, `8x8`, or a grid of TPU chips; None for one device.
      fusion_without_result: the first fusion that the autotune results do not cover.
      predicted_lock: if the autotune results were predicted, the number of instructions with a
        result of each basis; see `xlapipe.time.predicted_locks.predict.Basis`.
      other_choice: the probability that the device's own results differ from the predicted ones in
        whether there is a workspace; see `xlapipe.time.predicted_locks.plan_error`.
      refused_tuning: whether XLA refused autotune results that were predicted; the plan has none.
      refused: XLA's message if it planned the program and then refused it for lack of memory.
      sorts_undecided, rematerialised_bytes: as of `Plan`.
      xla_patches: names of the changes made to XLA in memory; empty also for a dump from
        before they were recorded.
    """

    versions: Mapping[str, str]
    options: Mapping[str, str]
    memory_analysis: Mapping[str, Natural]
    target: str | None = None
    gemm_policy: str = "auto"
    requested_dots: tuple[RequestedDot, ...] | None = None
    topology: str | None = None
    fusion_without_result: str | None = None
    predicted_lock: Mapping[str, int] | None = None
    other_choice: float | None = None
    refused_tuning: bool = False
    refused: str | None = None
    sorts_undecided: bool = False
    rematerialised_bytes: tuple[Natural, Natural] | None = None
    xla_patches: tuple[str, ...] = ()

    def in_plan(self, plan: Plan) -> Plan:
        """The plan with what of it is known beyond XLA's files."""
        return replace(
            plan,
            sorts_undecided=self.sorts_undecided,
            stated_costs=self.stated_costs,
            stated_trips=self.stated_trips,
            topology=self.topology,
            kernel_codes=self.kernel_codes,
            rematerialised_bytes=self.rematerialised_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data, of leaves those that are not at their defaults."""
        return {
            **asdict(self),
            "arguments": list(map(leaf_json, self.arguments)),
            "outputs": list(map(leaf_json, self.outputs)),
        }


def leaf_json(leaf: ArgumentLeaf | OutputLeaf) -> dict[str, Any]:
    """The fields of a leaf that are not at their defaults, which few leaves have others of."""
    given = ((item, getattr(leaf, item.name)) for item in fields(leaf))
    return {item.name: value for item, value in given if value != item.default}


UNKNOWN = CompileFacts(
    workload="",
    arguments=(),
    outputs=(),
    expectations=(),
    requested_collectives=None,
    versions={},
    options={},
    memory_analysis={},
)
"""The facts of files that xlapipe did not write."""


@dataclass(frozen=True)
class Program:
    """A plan together with the author's names for arguments and outputs.

    Attributes:
      target_config: the device's configuration, as XLA's text; None if unknown.
    """

    plan: Plan
    facts: CompileFacts = UNKNOWN
    target_config: str | None = None

    @property
    def arguments(self) -> tuple[ArgumentLeaf, ...]:
        return self.facts.arguments

    @property
    def outputs(self) -> tuple[OutputLeaf, ...]:
        return self.facts.outputs

    def __repr__(self) -> str:
        leaves = f"{len(self.arguments):,} arguments, {len(self.outputs):,} outputs"
        return f"<Program of {leaves}: {self.plan!r}>"

    @property
    def leaves(self) -> tuple[ArgumentLeaf | OutputLeaf, ...]:
        """The leaves of the arguments, then those of the outputs."""
        return (*self.arguments, *self.outputs)

    def arguments_named(self, pattern: str) -> tuple[ArgumentLeaf, ...]:
        return tuple(leaf for leaf in self.arguments if matches(pattern, leaf.path))

    def leaves_named(self, pattern: str) -> tuple[ArgumentLeaf | OutputLeaf, ...]:
        return tuple(leaf for leaf in self.leaves if matches(pattern, leaf.path))

    def values_named(self, name: str) -> tuple[NamedValue, ...]:
        return tuple(value for value in self.facts.named_values if value.name == name)

    def allocation_of(self, leaf: ArgumentLeaf | OutputLeaf) -> BufferAllocation | None:
        """The allocation of a leaf; None if it has no separate one, or if that is unknown."""
        if isinstance(leaf, ArgumentLeaf):
            return self.plan.parameter_allocation(leaf.parameter_number)
        return self.plan.output_allocation(leaf.index, of=len(self.outputs))

    def output_path(self, index: tuple[int, ...] | None) -> str:
        """The author's name for XLA's output index, or the index as text if it has no name."""
        if index is None:
            return "an output"
        return self._output_paths.get(index) or f"output {{{','.join(map(str, index))}}}"

    @cached_property
    def _output_paths(self) -> Mapping[tuple[int, ...], str]:
        """By XLA's index, which is `()` for a single output."""
        paths: dict[tuple[int, ...], str]
        paths = {(leaf.index,): leaf.path for leaf in reversed(self.outputs)}
        if len(self.outputs) == 1:
            paths[()] = self.outputs[0].path
        return paths

    @cached_property
    def argument_of_parameter(self) -> Mapping[int | None, ArgumentLeaf]:
        """The argument leaf of each parameter number."""
        return {
            leaf.parameter_number: leaf
            for leaf in self.arguments
            if leaf.parameter_number is not None
        }

    @cached_property
    def output_at(self) -> Mapping[str, OutputLeaf]:
        """The output leaves by path."""
        return {leaf.path: leaf for leaf in self.outputs}

    @cached_property
    def owner_of_output(self) -> Mapping[str, ArgumentLeaf]:
        """The argument leaf that each aliased output is written over, by the output's path."""
        arguments = self.argument_of_parameter
        return {
            self.output_path(alias.output_index): arguments[alias.parameter_number]
            for alias in self.plan.aliases
            if alias.parameter_number in arguments
        }


def path_keys(path: str) -> tuple[str, ...]:
    """The name that a path begins with, and the keys below it.

    >>> path_keys("state.params['a.b'][0]")
    ('state', 'params', "['a.b']", '[0]')
    """
    return tuple(key.removeprefix(".") for key in PATH_KEY.findall(path))


def matches(pattern: str, path: str) -> bool:
    """Whether `pattern` names `path` or a parent of it; `*` matches any characters.

    >>> matches("cache", "cache[0]['k']"), matches("cache[*]['v']", "cache[0]['k']")
    (True, False)
    """
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(f"{expression}($|[\\[.].*)", path) is not None
