"""How the cost of a step differs between two plans, by source line."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xlapipe.inductor.layouts import sum_if_known
from xlapipe.time.cost import KernelCost, StepCost
from xlapipe.time.predict import Prediction

# Smaller differences of a floor are rounding.
_LEAST_SECONDS = 1e-9
# Smaller differences would be printed as 0.0 µs; those of a line's prediction are not printed.
_LEAST_MICROSECONDS = 0.05e-6
# A line whose predicted time alone differs is listed from this share of the step's time on: smaller
# differences are of what the L2 cache still holds.
_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class LineCost:
    """Cost of the kernels of one source line; seconds are None if a GPU is unknown.

    Attributes:
      predicted_seconds: None also without a calibration, and where a part is not counted.
      at_least_seconds: seconds of the whole step, where a part is not counted.
      network: of the whole step, its name; empty without collectives.
      flops: floating-point operations of matrix products and convolutions that are counted.
    """

    floor_seconds: float | None = None
    predicted_seconds: float | None = None
    read_bytes: int = 0
    written_bytes: int = 0
    launches: int = 0
    at_least_seconds: float | None = None
    network: str = ""
    flops: int = 0

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def predicted_text(self) -> str:
        """The predicted time, or what it is at least."""
        if self.at_least_seconds is not None:
            return f"at least {self.at_least_seconds * 1e6:,.1f} µs"
        seconds = self.predicted_seconds
        return "unknown" if seconds is None else f"{seconds * 1e6:,.1f} µs"


@dataclass(frozen=True, slots=True)
class TimeChange:
    """A source line, or the whole step (None), whose cost differs between A and B.

    Attributes:
      verb: what the times are: predicted, or estimated where one is of a TPU.
    """

    source: str | None
    a: LineCost
    b: LineCost
    verb: str = "predicted"

    @property
    def delta_seconds(self) -> float | None:
        """Floor of B minus floor of A; None if either is unknown."""
        a, b = self.a.floor_seconds, self.b.floor_seconds
        return None if a is None or b is None else b - a

    @property
    def predicted_delta_seconds(self) -> float | None:
        """Predicted time of B minus that of A; None if either is unknown."""
        a, b = self.a.predicted_seconds, self.b.predicted_seconds
        return None if a is None or b is None else b - a

    @property
    def text(self) -> str:
        """The change in words: `least time +38.0 µs (longer): layer.py:31 reads 1,024 B more`.

        With the predicted change after it, if there is one: `…, predicted +51.2 µs`; of the whole
        step, both predictions.

        `same least time: layer.py:31 reads 1,024 B more`, where operations bound the time.
        """
        flops = self.b.flops - self.a.flops
        more_flops = "more" if flops > 0 else "less"
        parts = [f"computes {abs(flops):,} operations {more_flops}"] if flops else []
        parts += [
            f"{verb} {abs(after - before):,} B {'more' if after > before else 'less'}"
            for verb, before, after in (
                ("reads", self.a.read_bytes, self.b.read_bytes),
                ("writes", self.a.written_bytes, self.b.written_bytes),
            )
            if after != before
        ]
        if self.a.launches != self.b.launches:
            parts.append(f"launches {self.b.launches:,} instead of {self.a.launches:,}")
        what = (", ".join(parts) or "has the same bytes and launches") + self._predicted
        name = self.source or "the step"
        delta = self.delta_seconds
        if delta is None:
            return f"{name} {what}"
        if abs(delta) < _LEAST_SECONDS:
            return f"same least time: {name} {what}"
        longer = delta > 0
        touched = self.b.touched_bytes - self.a.touched_bytes
        # Fewer bytes take longer where the operations, or the launches, bound the time.
        explained = flops and (flops > 0) == longer
        although = "although " if touched and (touched > 0) != longer and not explained else ""
        direction = "longer" if longer else "shorter"
        text = f"{delta * 1e6:+,.1f} µs"
        if abs(delta) < _LEAST_MICROSECONDS:
            text = f"{delta * 1e9:+.1f} ns"
        return f"least time {text} ({direction}): {although}{name} {what}"

    @property
    def _predicted(self) -> str:
        a, b = self.a.predicted_seconds, self.b.predicted_seconds
        if self.a.at_least_seconds is not None or self.b.at_least_seconds is not None:
            return (
                f"; {self.verb} {self.a.predicted_text} -> {self.b.predicted_text}: not compared, "
                "because a part is not counted (show --time says which)"
            )
        if a is None or b is None:
            return ""
        if self.source is None:
            before, after = f"{a * 1e6:,.1f}", f"{b * 1e6:,.1f}"
            networks = " -> ".join(dict.fromkeys(filter(None, (self.a.network, self.b.network))))
            over = f", network {networks}" if networks else ""
            if before == after:
                return f"; {self.verb} {after} µs for both{over}"
            share = f" ({b / a - 1:+z.1%})" if a else ""
            return f"; {self.verb} {before} -> {after} µs{share}{over}"
        delta = b - a
        return f"; {self.verb} {delta * 1e6:+,.1f} µs" if abs(delta) >= _LEAST_MICROSECONDS else ""


def time_changes(
    a: StepCost | None,
    b: StepCost | None,
    predictions: tuple[Prediction | None, Prediction | None] = (None, None),
    pairs: Mapping[str, str] | None = None,
) -> tuple[TimeChange, ...]:
    """The step and the source lines whose cost differs, the step first, then the largest.

    The largest difference is that of the predicted time, or else of the floor.

    Empty if either cost is unknown or nothing differs.

    Args:
      pairs: instructions of A to those of B. A kernel of A counts for the line of its pair.
    """
    if a is None or b is None:
        return ()
    predicted_a, predicted_b = predictions
    lines_a = _by_source(_at_lines_of_b(a, b, pairs or {}), predicted_a)
    lines_b = _by_source([(kernel, _line(kernel)) for kernel in b.kernels], predicted_b)
    known = a.floor_seconds is not None and b.floor_seconds is not None
    predicted = all(item and item.step_seconds is not None for item in predictions)
    verb = min((item.verb for item in predictions if item), default="predicted")
    changes = [
        TimeChange(source, lines_a.get(source, nothing), lines_b.get(source, nothing), verb)
        for nothing in [LineCost(0.0 if known else None, 0.0 if predicted else None)]
        for source in [*lines_a, *(source for source in lines_b if source not in lines_a)]
    ]
    times = [item.step_seconds or 0.0 for item in predictions if item]
    least = max(_LEAST_MICROSECONDS, _LEAST_SHARE * max(times, default=0.0))
    changed = [change for change in changes if _differs(change, least)]
    if not changed:
        return ()
    step = TimeChange(
        None, _step_change(a, lines_a, predicted_a), _step_change(b, lines_b, predicted_b), verb
    )
    return (step, *sorted(changed, key=_rank))


def _rank(change: TimeChange) -> tuple[float, int, str]:
    seconds = change.predicted_delta_seconds or change.delta_seconds or 0.0
    size_bytes = abs(change.b.touched_bytes - change.a.touched_bytes)
    return (-abs(seconds), -size_bytes, change.source or "")


def _differs(change: TimeChange, least: float) -> bool:
    if abs(change.predicted_delta_seconds or 0.0) >= least:
        return True
    if abs(change.delta_seconds or 0.0) >= _LEAST_SECONDS:
        return True
    a, b = change.a, change.b
    counts = (a.read_bytes, a.written_bytes, a.launches)
    return counts != (b.read_bytes, b.written_bytes, b.launches)


def _step_change(
    cost: StepCost, lines: Mapping[str, LineCost], prediction: Prediction | None
) -> LineCost:
    return LineCost(
        cost.floor_seconds,
        prediction.step_seconds if prediction is not None else None,
        sum(line.read_bytes for line in lines.values()),
        sum(line.written_bytes for line in lines.values()),
        cost.launches,
        prediction.at_least_seconds if prediction is not None else None,
        prediction.network_name if prediction is not None else "",
        sum(line.flops for line in lines.values()),
    )


def _line(kernel: KernelCost) -> str:
    return str(kernel.source) if kernel.source is not None else "unknown line"


def _at_lines_of_b(
    a: StepCost, b: StepCost, pairs: Mapping[str, str]
) -> list[tuple[KernelCost, str]]:
    """The kernels of A, each with its line in B.

    That of the paired kernel; else that of the most paired kernels of the same line. A line of A
    that has none of these is marked if another line of A has its number in B.
    """
    lines_b = {kernel.name: _line(kernel) for kernel in b.kernels}
    moved: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kernel in a.kernels:
        if (line := lines_b.get(pairs.get(kernel.name, ""))) is not None:
            moved[_line(kernel)][line] += 1
    taken = {line for one, lines in moved.items() for line in lines if line != one}

    def line_of(kernel: KernelCost) -> str:
        line = _line(kernel)
        if (paired := lines_b.get(pairs.get(kernel.name, ""))) is not None:
            return paired
        if line in moved:
            return moved[line].most_common(1)[0][0]
        return f"{line} of A" if line in taken else line

    return [(kernel, line_of(kernel)) for kernel in a.kernels]


def _by_source(
    kernels: Iterable[tuple[KernelCost, str]], prediction: Prediction | None
) -> dict[str, LineCost]:
    of_source: dict[str, list[KernelCost]] = {}
    for kernel, source in kernels:
        of_source.setdefault(source, []).append(kernel)
    whole = prediction is not None and prediction.step_seconds is not None
    seconds_of = {item.name: item.seconds for item in prediction.kernels} if prediction else {}
    return {
        source: LineCost(
            floor_seconds=sum_if_known(kernel.floor_seconds for kernel in members),
            predicted_seconds=sum(seconds_of.get(kernel.name, 0.0) for kernel in members)
            if whole
            else None,
            read_bytes=sum(kernel.read_bytes for kernel in members),
            written_bytes=sum(kernel.written_bytes for kernel in members),
            launches=sum(kernel.launches for kernel in members),
            flops=sum(kernel.total_flops or 0 for kernel in members),
        )
        for source, members in of_source.items()
    }
