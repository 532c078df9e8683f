"""The values of a forward pass, and which of them the backward pass uses. Plain data, without jax.

The compiling child writes it as JSON while it lowers a step; `xlapipe choose` reads it.
"""

from dataclasses import dataclass
from typing import NamedTuple


class PolicyKey(NamedTuple):
    """What a policy of `jax.checkpoint` sees of a value; in a loop's body, in one iteration.

    Attributes:
      primitive: `name` for `checkpoint_name`.
      input_shapes: shapes of all inputs; None for a size that may differ between batches and
        sequences. Empty for a named value.
      dtype: dtype of the first input; empty without inputs, and for a named value.
      name: given to `checkpoint_name`; None for others.
      dimensions: contracted and batch dimensions of a matrix product; None for others.
    """

    primitive: str
    input_shapes: tuple[tuple[int | None, ...], ...]
    dtype: str
    name: str | None = None
    dimensions: tuple[tuple[tuple[int, ...], ...], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ForwardValue:
    """A value that an equation of the forward pass makes; of a loop, all iterations.

    Attributes:
      key: None for a value that no policy decides about: an input of a loop's iteration.
      shape, dtype: shape and dtype of one iteration.
      size_bytes: size of all iterations that are kept at once, on all devices.
      operations: multiplications and additions, of all iterations and devices.
      touched_bytes: bytes of inputs and outputs, likewise.
      inputs: numbers of the values that it is computed from; arguments are left out.
      needed: whether the backward pass uses it.
      differentiated: whether it is inside a differentiated function.
      source: `file:line` of the user.
      loop: `file:line` of the innermost scan that is differentiated; None outside.
      trips: iterations whose values are kept at once.
      on_host: whether the step moves it to the host's memory until then.
      calls: numbers of the repeated functions that compute it.
    """

    number: int
    key: PolicyKey | None
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    operations: int
    touched_bytes: int
    inputs: tuple[int, ...]
    needed: bool
    differentiated: bool
    source: str | None
    loop: str | None
    trips: int
    on_host: bool = False
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class PolicySite:
    """A call in the step, at `file:line`, that a policy can be given to.

    Attributes:
      kind: `gradient`, `scan` or `checkpoint`.
      function: as the user calls it, e.g. `nnx.value_and_grad`.
      positions: positions of the differentiated arguments; empty for others.
      made_before: whether the call is one of what `function` returned elsewhere.
      calls: number of different calls of `function` on the line.
      other_output: a value beside arrays that the differentiated function returns; None if all are
        arrays, and for other kinds.
    """

    kind: str
    source: str
    function: str
    positions: tuple[int, ...] = ()
    made_before: bool = False
    calls: int = 1
    other_output: str | None = None


@dataclass(frozen=True)
class FormSite:
    """A call, at `file:line` and a column, that can be written in another form, with equal results.

    Attributes:
      kind: `vmap`, `cast`, or `microbatches` and `loss` of a gradient.
      size: items of the axis that blocks are taken of.
      largest_bytes: size of the largest value of all items, without what a vmap returns.
      batch: positions of the arguments with that axis, of a gradient.
      refused: why it has no other form; empty if it has.
      dtype: in which `cast` moves a value.
      mean: whether a loss is the mean of those of blocks, else their sum.
      closed_over: names of the last of those, which the differentiated function closes over.
    """

    kind: str
    source: str
    column: int
    size: int
    largest_bytes: int
    function: str = "jax.vmap"
    batch: tuple[int, ...] = ()
    refused: str = ""
    closed_over: tuple[str, ...] = ()
    dtype: str = ""
    mean: bool = True

    @property
    def place(self) -> str:
        """`file:line:column`."""
        return f"{self.source}:{self.column}"


@dataclass(frozen=True)
class SideEffect:
    """An equation in a differentiated function that does more than compute its outputs.

    The source is `file:line` of the user, None if unknown; loop and calls are as of `ForwardValue`.
    """

    primitive: str
    source: str | None
    loop: str | None
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoopCall:
    """The one expression that calls a function, in a `for` loop, at most `calls` times.

    Attributes:
      written: the expression, whose line is the source.
      function: what it calls with `arguments`, e.g. `Block.__call__`.
      counter: variable that counts the iterations from 0.
      header: of the loop, with the counter.
    """

    source: str
    written: str
    function: str
    arguments: str
    counter: str
    header: str
    header_source: str
    calls: int = 0


@dataclass(frozen=True)
class RepeatedCall:
    """A function of the user that the forward pass calls several times, such as a model's block.

    Attributes:
      source: `file:line` of its definition, or of the decorator above which one more is written.
      calls: number of calls; each iteration of a Python loop is one.
      outer: number of the innermost other repeated function that calls it; None if none does.
      form: of `jax.checkpoint` for what it is called with, e.g. `nnx.remat`.
      static_argnums: positions of the parameters that are not arrays; None if they are passed by
        name, or cannot be compared.
      other_output: a value beside arrays that it returns; None if all are arrays.
      loop: the loop that calls it; None if several lines do, or a call that cannot be rewritten.
    """

    function: str
    source: str
    calls: int
    outer: int | None = None
    form: str = "jax.checkpoint"
    static_argnums: tuple[int, ...] | None = ()
    other_output: str | None = None
    loop: LoopCall | None = None

    @property
    def name(self) -> str:
        """The function, or its class for `__call__`."""
        return self.function.removesuffix(".__call__")


@dataclass(frozen=True)
class ForwardGraph:
    """The forward pass of a step, in the order in which it is computed and traced.

    Attributes:
      names: that the step gives with `checkpoint_name`, also to values that are not kept.
      arguments_bytes: sizes of the arguments that the backward pass reads, on all devices.
      effects: those that are repeated if the equations around them are recomputed.
      decided: keys of what the policy of the step's own `jax.checkpoint` was asked about; empty if
        it is the step's own.
      repeated: what the differentiated functions call several times.
      program_sha256: digest of the lowered step.
    """

    values: tuple[ForwardValue, ...]
    sites: tuple[PolicySite, ...]
    names: tuple[str, ...] = ()
    arguments_bytes: tuple[int, ...] = ()
    effects: tuple[SideEffect, ...] = ()
    decided: tuple[PolicyKey, ...] = ()
    repeated: tuple[RepeatedCall, ...] = ()
    program_sha256: str | None = None
    forms: tuple[FormSite, ...] = ()
