"""Arguments and outputs of two programs, matched by element type, shape and order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

Shape = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """An argument or an output, on one device.

    Attributes:
      dtype: torch's name, e.g. `bfloat16`; None if unknown.
      shape: None if unknown.
      reused: whether its memory is used for an output, or freed by the call.
    """

    name: str
    dtype: str | None
    shape: Shape | None
    size_bytes: int | None
    reused: bool = False

    @property
    def type_text(self) -> str:
        """E.g. `bfloat16[256, 1024]`."""
        if self.shape is None:
            return "unknown"
        return f"{self.dtype or '?'}[{', '.join(map(str, self.shape))}]"


class Match(StrEnum):
    """How an argument or output of one program is like one of the other."""

    SAME = "same"
    TRANSPOSED = "transposed"
    OTHER_DTYPE = "other dtype"
    SAME_BYTES = "same bytes"
    ONLY_INDUCTOR = "only Inductor"
    ONLY_XLA = "only XLA"


@dataclass(frozen=True, slots=True)
class LeafPair:
    """An argument or output of both programs; one side is None if that program lacks it."""

    match: Match
    inductor: TensorLeaf | None
    xla: TensorLeaf | None


@dataclass(frozen=True)
class MatchedLeaves:
    """All arguments, or all outputs.

    Attributes:
      pairs: in the order of Inductor's, then what only XLA has.
      same_order: whether XLA has those that are the same in the same order.
    """

    pairs: tuple[LeafPair, ...]
    same_order: bool

    @property
    def same(self) -> bool:
        """Whether each has one of the same dtype and shape on the other side."""
        return all(pair.match == Match.SAME for pair in self.pairs)

    @property
    def matched(self) -> int:
        """How many are the same."""
        return sum(pair.match == Match.SAME for pair in self.pairs)

    @property
    def differing(self) -> tuple[LeafPair, ...]:
        """Those that are not the same."""
        return tuple(pair for pair in self.pairs if pair.match != Match.SAME)


# Properties that matching leaves share.
_Key = Callable[[TensorLeaf], object]


def match_leaves(inductor: Sequence[TensorLeaf], xla: Sequence[TensorLeaf]) -> MatchedLeaves:
    """Pairs each leaf with the first one left on the other side that is like it.

    Equal ones are paired first, then those that are transposed, then those of another dtype. A leaf
    whose shape is not known is paired with one of the same number of bytes.
    """
    match_of: dict[int, tuple[Match, int]] = {}
    taken: set[int] = set()
    rules: tuple[tuple[Match, _Key], ...] = (
        (Match.SAME, lambda leaf: (leaf.dtype, leaf.shape)),
        (Match.TRANSPOSED, lambda leaf: (leaf.dtype, sorted(map(str, leaf.shape or ())))),
        (Match.OTHER_DTYPE, lambda leaf: leaf.shape),
        (Match.SAME_BYTES, lambda leaf: leaf.size_bytes),
    )
    for match, key in rules:
        for at, leaf in enumerate(inductor):
            # Bytes alone are compared only without a shape.
            if at in match_of or (leaf.shape is None) != (match == Match.SAME_BYTES):
                continue
            if leaf.shape is None and leaf.size_bytes is None:
                continue
            other = _first_like(leaf, xla, taken, key)
            if other is not None:
                match_of[at] = match, other
                taken.add(other)
    pairs = [
        LeafPair(match_of[at][0], leaf, xla[match_of[at][1]])
        if at in match_of
        else LeafPair(Match.ONLY_INDUCTOR, leaf, None)
        for at, leaf in enumerate(inductor)
    ]
    pairs += [
        LeafPair(Match.ONLY_XLA, None, leaf) for at, leaf in enumerate(xla) if at not in taken
    ]
    order = [match_of[at][1] for at in sorted(match_of) if match_of[at][0] == Match.SAME]
    return MatchedLeaves(tuple(pairs), order == sorted(order))


def _first_like(
    leaf: TensorLeaf, others: Sequence[TensorLeaf], taken: set[int], key: _Key
) -> int | None:
    for place, other in enumerate(others):
        if place not in taken and other.shape is not None and key(other) == key(leaf):
            return place
    return None
