"""The search for the largest size that fits, with few compiles.

The memory of a plan is nearly affine in a size such as the batch, so the next size is where the
line through the two sizes next to the boundary meets the limit. If a guess does not halve the
interval, the next one does: a plan in which XLA starts to rematerialise is not on the line.
"""

from collections.abc import Callable
from dataclasses import dataclass

from xlapipe.errors import XlapipeError

# Factor between sizes while no size is too large and there is no line yet.
_GROWTH = 2
# How far a line is trusted beyond the largest size that was compiled, without an upper bound.
_MOST_GROWTH = 64


@dataclass(frozen=True, slots=True)
class Probe:
    """A size that was compiled.

    Attributes:
      headroom_bytes: usable bytes minus the plan's; negative if it does not fit.
      fits: may be False with a positive headroom, if XLA itself refused the plan.
    """

    size: int
    headroom_bytes: int
    fits: bool


def largest_size(
    probe: Callable[[int], Probe],
    *,
    lower: int,
    upper: int | None,
    multiple_of: int = 1,
) -> tuple[Probe, ...]:
    """Compiles sizes until the largest one that fits is known.

    It is known when it is `upper`, or when the next multiple does not fit.

    Args:
      probe: compiles a size.
      lower: the smallest size; rounded up to a multiple of `multiple_of`.
      upper: the largest size; None for no bound.

    Returns:
      The sizes in the order in which they were compiled. None of them fits if the first does not.

    Raises:
      XlapipeError: the bounds contain no multiple.
    """
    first = max(1, -(-lower // multiple_of))
    last = upper // multiple_of if upper is not None else None
    if multiple_of < 1 or (last is not None and last < first):
        raise XlapipeError(
            f"sizes from {lower} to {upper}: contain no positive multiple of {multiple_of}"
        )
    probes: dict[int, Probe] = {}

    def fits(number: int) -> bool:
        probes[number] = probe(number * multiple_of)
        return probes[number].fits

    low: int = first
    high: int | None = None
    if not fits(first):
        return tuple(probes.values())
    halve = False
    while low != last and (high is None or high - low > 1):
        before = low, high
        number = _next(probes, low, high, last, halve=halve)
        low, high = (number, high) if fits(number) else (low, number)
        halve = not halve and not _halved(before, (low, high))
    return tuple(probes.values())


def _halved(before: tuple[int, int | None], after: tuple[int, int | None]) -> bool:
    """Whether an interval is at most half as long; an open one counts as halved."""
    if before[1] is None or after[1] is None:
        return True
    return 2 * (after[1] - after[0]) <= before[1] - before[0]


def _next(
    probes: dict[int, Probe], low: int, high: int | None, last: int | None, *, halve: bool
) -> int:
    """The number to compile next, between `low` and `high` or up to `last`."""
    most = high - 1 if high is not None else last or low * _MOST_GROWTH
    if halve and high is not None:
        return (low + high) // 2
    guess = _on_line(probes, low, high)
    if guess is None:
        guess = low * _GROWTH
    return max(low + 1, min(guess, most))


def _on_line(probes: dict[int, Probe], low: int, high: int | None) -> int | None:
    """The largest number that fits on the line through two probes; None without such a line."""
    smaller = [number for number in probes if number < low]
    other = high if high is not None else max(smaller, default=None)
    if other is None:
        return None
    a, b = probes[low], probes[other]
    slope = (b.headroom_bytes - a.headroom_bytes) / (other - low)
    if slope >= 0:
        return None
    return low + int(a.headroom_bytes / -slope)
