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
    gradients: tuple[str, ...] = ()
