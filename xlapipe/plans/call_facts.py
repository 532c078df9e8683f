"""What jax's caches of compiled programs depend on in a call, as it is recorded in a dump."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A node of the arguments that comes back as another one, e.g. None as an array."""

    argument: str
    output: str
    was: str
    becomes: str


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """A call of the workload that jax compiles another program for.

    Attributes:
      call: number of the call; 1 is the workload's own.
      argument: path of the leaf, static argument or static field that differs from the call with
        the most similar arguments.
      was, becomes: what it is there, and in this call.
      like: number of that call.
      advice: what to change, as an imperative sentence.
    """

    call: int
    argument: str
    was: str
    becomes: str
    like: int
    advice: str = ""

    def __str__(self) -> str:
        return (
            f"call {self.call} compiles, since {self.argument} is {self.becomes}, and "
            f"{self.was} in call {self.like}"
        )


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """What is known of a call beyond the fields of its leaves.

    Attributes:
      carried: the part of the outputs that replaces each argument in the next call.
      trees: nodes that come back as others.
      weak_arguments, weak_outputs: paths of leaves of weak type.
      unplaced: paths of arguments that are not committed to devices.
      outputs_placed: whether outputs are committed to their devices.
      layouts, output_layouts: order of dimensions in memory by path, where it is not the default.
      fixed: paths of arguments whose sharding `jax.jit` states.
      settles: whether the outputs of the second call have the types of earlier arguments; None if
        that is not known, or if the second call has the types of the first.
      calls: number of calls that the workload states.
      programs: those of them that compile another program.
      processes: how the programs of several processes differ, or how many were compared if not
        all; empty if they are the same.
      refused: the error of the second call; empty if it has none.
      gradients: paths of outputs that are gradients, and not updated arguments.
    """

    carried: Mapping[str, str]
    trees: tuple[TreeChange, ...] = ()
    weak_arguments: tuple[str, ...] = ()
    weak_outputs: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    outputs_placed: bool = False
    layouts: Mapping[str, str] = field(default_factory=dict)
    output_layouts: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    calls: int = 1
    programs: tuple[OtherProgram, ...] = ()
    processes: str = ""
    settles: bool | None = None
    refused: str = ""
    gradients: tuple[str, ...] = ()
