"""Which form to compile next, and which cannot win, by estimates from the forward pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xlapipe.compile.lowering.forward_graph import ForwardGraph
from xlapipe.search.candidate import Candidate, StepChange
from xlapipe.search.choosing.compiles import Compiles, target_device
from xlapipe.search.choosing.search import Estimate, estimate

_WRITTEN = Estimate(0.0, 0.0)
# An estimate of freed bytes that is a smaller share of that of a form which does not fit.
_SURELY_LESS = 0.9


@dataclass
class Order:
    """Orders candidates, each of which is compiled once.

    Attributes:
      graphs: forward passes, by values as text.
      left_out: number of candidates that cannot win.
    """

    compiles: Compiles
    graphs: Mapping[str, ForwardGraph]
    left_out: int = 0
    _tried: set[str] = field(default_factory=set)
    _estimates: dict[StepChange, Estimate] = field(default_factory=dict)
    _likely_started: bool = False

    def new(self, candidates: Sequence[Candidate], most: int | None = None) -> Iterator[Candidate]:
        """Those that were not tried, at `most` so many, each as the best of what is left then."""
        waiting: dict[str, Candidate] = {}
        for candidate in candidates:
            if _identity(candidate) not in self._tried:
                waiting.setdefault(_identity(candidate), candidate)
        while waiting and most != 0:
            numbers = {key: number for number, key in enumerate(waiting)}
            key = min(waiting, key=lambda key: self._rank(waiting[key], numbers[key]))
            candidate = waiting.pop(key)
            if most is not None:
                most -= 1
            same = self._program(candidate)
            is_new = not {key, same} & self._tried
            self._tried |= {key, same}
            self.compiles.waiting = len(waiting)
            if not is_new:
                continue
            if self._cannot_win(candidate):
                self.left_out += 1
                continue
            self._likely_started |= candidate.change is not None and self._fits(candidate) is True
            yield candidate

    def _rank(self, candidate: Candidate, number: int) -> tuple[int, float]:
        """Sort key: first the likely answer, then what is quick to make, then other forms."""
        change = candidate.change
        if change is None or not change.is_same_step:
            return 5, number
        if change.policy is None:
            return 0 if self._likely_started else 2, number
        fits, own = self._fits(candidate), self._estimate(candidate)
        if fits is None or own is None:
            return 3, number
        return (1, own.again_seconds) if fits else (4, -own.freed_bytes)

    def _cannot_win(self, candidate: Candidate) -> bool:
        """Whether a compiled form is faster and as small by estimates, or cannot fit either."""
        own = self._estimate(candidate)
        if own is None:
            return False
        for row in self.compiles.rows_of(candidate):
            other = self._estimate(row.candidate)
            if other is None:
                continue
            if row.fits and own.is_worse_than(other):
                return True
            less = own.freed_bytes < _SURELY_LESS * other.freed_bytes
            if not row.fits and less and row.candidate.change is not None:
                return True
        return False

    def _fits(self, candidate: Candidate) -> bool | None:
        """Whether it probably fits; None if nothing is known of it."""
        own = self._estimate(candidate)
        if own is None:
            return None
        nearest = min(
            (
                (abs(other.freed_bytes - own.freed_bytes), row, other)
                for row in self.compiles.rows_of(candidate)
                if (other := self._estimate(row.candidate)) is not None
            ),
            key=lambda item: item[0],
            default=None,
        )
        if nearest is None:
            return None
        _, row, other = nearest
        return row.memory.headroom_bytes >= (other.freed_bytes - own.freed_bytes) / row.devices

    def _estimate(self, candidate: Candidate) -> Estimate | None:
        """None for forms that are not estimated."""
        change, graph = candidate.change, self.graphs.get(candidate.values_text)
        if change is None:
            return _WRITTEN
        if change.recomputed is None or change.arguments or graph is None:
            return None
        if change not in self._estimates:
            device = target_device(candidate.target)
            self._estimates[change] = estimate(graph.values, change.recomputed, device)
        return self._estimates[change]

    def _program(self, candidate: Candidate) -> str:
        """What it keeps and computes again, which different policies may do alike."""
        own, change = self._estimate(candidate), candidate.change
        if own is None or change is None or change.policy is None:
            return _identity(candidate)
        where = (change.policy.lines, change.policy.which)
        values = (sorted(own.again), sorted(own.kept))
        return repr((candidate.target, candidate.values, where, values))


def _identity(candidate: Candidate) -> str:
    """What a candidate compiles, apart from how its change is described."""
    change = candidate.change
    own = [change.arguments, change.policy, change.options] if change is not None else None
    return repr((candidate.target, candidate.values, own))
