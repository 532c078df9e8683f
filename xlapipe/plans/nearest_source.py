"""The source line nearest to each instruction, over its users or over its operands."""

from collections.abc import Collection, Mapping, Sequence

from xlapipe.plans.hlo import SourceLine


def nearest_sources(
    own: Mapping[str, SourceLine],
    neighbours: Mapping[str, Sequence[str]],
    neighbour_of: Mapping[str, Sequence[str]],
    *,
    ends: Collection[str] = (),
) -> dict[str, SourceLine]:
    """The line that a breadth-first search from each instruction finds first.

    One search from all lines at once, in time linear in instructions and operands: an instruction
    at distance d takes the line of its first neighbour at distance d - 1.

    Args:
      own: lines of the instructions that have one.
      neighbours: where a search goes from each instruction.
      neighbour_of: the same edges in the other direction.
      ends: instructions from which a search does not go on.

    Returns:
      Lines by name; no entry for an instruction that reaches none.
    """
    lines = dict(own)
    latest = list(lines)
    while latest:
        reached = {
            name: None
            for neighbour in latest
            for name in neighbour_of.get(neighbour, ())
            if name not in lines and name not in ends
        }
        nearest = {
            name: next(lines[other] for other in neighbours[name] if other in lines)
            for name in reached
        }
        lines.update(nearest)
        latest = list(nearest)
    return lines
