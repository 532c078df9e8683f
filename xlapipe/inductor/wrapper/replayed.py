"""What a replay of wrapper code starts from, and what it finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from xlapipe.inductor.allocations import Replay, Tensor
from xlapipe.inductor.fx_graphs import FxGraph
from xlapipe.inductor.inductor_plan import UnknownAllocation
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.wrapper.launches import Launch


@dataclass(frozen=True, slots=True)
class GivenArgument:
    """What the forward graph states about an argument of the backward graph.

    Attributes:
      group: arguments of one group share a storage; None for an argument that the caller keeps.
      size_bytes: size of that storage.
    """

    group: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class Known:
    """What other files state about the graph.

    Attributes:
      layouts: layouts of buffers and arguments, from IR or FX graphs.
      given: by argument name; empty if no forward graph was found.
      fx: the graph from which it was made.
      gives_by_name: whether arguments that are not named as parameters, inputs or tangents are
        given away, as assumed for a backward graph alone.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    given: Mapping[str, GivenArgument] = field(default_factory=dict)
    fx: FxGraph | None = None
    gives_by_name: bool = False


@dataclass(frozen=True, slots=True)
class ReplayedArgument:
    """An argument of the call; `tensor` is None for a number."""

    name: str
    layout: Layout | None
    tensor: Tensor | None
    given: bool


@dataclass
class Replayed:
    """What a replay found in addition to the state of memory.

    Attributes:
      returned: each entry of the returned tuple, with its name.
      resized: buffer, new size, line.
    """

    replay: Replay
    arguments: list[ReplayedArgument] = field(default_factory=list)
    returned: list[tuple[str, Tensor | None]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    unknown: list[UnknownAllocation] = field(default_factory=list)
    resized: list[tuple[str, int | None, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
