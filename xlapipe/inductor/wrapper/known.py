"""What other files of a dump state about a graph, where the replay of its wrapper starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from xlapipe.inductor.fx_graphs import FxGraph
from xlapipe.inductor.layouts import Layout


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
