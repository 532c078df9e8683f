"""The source line nearest to each instruction, over its users or over its operands."""

from collections.abc import Collection, Iterable, Mapping, Sequence


def nearest_sources(
    own: Iterable[str],
    neighbours: Mapping[str, Sequence[str]],
    neighbour_of: Mapping[str, Sequence[str]],
    *,
    ends: Collection[str] = (),
) -> dict[str, str]:
    """The instruction with a source line that a breadth-first search from each one finds first.

    One search from all of them at once, in time linear in instructions and operands: an instruction
    at distance d takes that of its first neighbour at distance d - 1.

    Args:
      own: the instructions that have a source line.
      neighbours: where a search goes from each instruction.
      neighbour_of: the same edges in the other direction.
      ends: instructions from which a search does not go on.

    Returns:
      The nearest instruction by name; no entry for an instruction that reaches none.
    """
    sources = {name: name for name in own}
    latest = list(sources)
    while latest:
        reached = {
            name: None
            for neighbour in latest
            for name in neighbour_of.get(neighbour, ())
            if name not in sources and name not in ends
        }
        nearest = {
            name: next(sources[other] for other in neighbours[name] if other in sources)
            for name in reached
        }
        sources.update(nearest)
        latest = list(nearest)
    return sources
