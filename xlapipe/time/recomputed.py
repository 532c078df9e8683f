"""What XLA itself computes again to stay below its memory limit, and what that costs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlapipe.plans import Plan
from xlapipe.plans.wording import counted

# HloRematerialization names a copy of an instruction after the original, e.g. `fusion.3.remat2`.
_REMATERIALISED = re.compile(r"\.remat(?![a-z])")


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What XLA computes again to fit.

    Attributes:
      instructions: copies that XLA added, also of those that launch nothing.
      before_bytes, after_bytes: the peak by XLA's own estimate; None if the dump lacks it.
      added_share: predicted time of the kernels among them, relative to the step without them;
        None without a prediction.
    """

    instructions: int
    before_bytes: int | None = None
    after_bytes: int | None = None
    added_share: float | None = None

    def text(self, total_bytes: int) -> str:
        """Bytes and time with and without it."""
        parts = [f"{_rounded(total_bytes)} with {counted(self.instructions, 'instruction')} more"]
        if self.before_bytes is not None and self.after_bytes is not None:
            before = total_bytes + self.before_bytes - self.after_bytes
            parts = [f"about {_rounded(before)} -> {_rounded(total_bytes)}"]
        if self.added_share is not None:
            parts.append(f"{self.added_share:+.0%} time")
        return f"XLA recomputes to fit: {', '.join(parts)}"


def _rounded(size_bytes: int) -> str:
    unit = "GiB" if size_bytes >= 1 << 30 else "MiB"
    return f"{size_bytes / (1 << (30 if unit == 'GiB' else 20)):.1f} {unit}"


def rematerialised_names(plan: Plan) -> tuple[str, ...]:
    """Instructions of HloRematerialization, also those that launch nothing."""
    return tuple(name for name in plan.instructions if _REMATERIALISED.search(name))


def recomputation(
    plan: Plan, names: Sequence[str], seconds_of: Mapping[str, float]
) -> Recomputation:
    """What XLA computes again."""
    added = sum(seconds_of[name] for name in _computed_before(seconds_of))
    rest = sum(seconds_of.values()) - added
    before, after = plan.rematerialised_bytes or (None, None)
    return Recomputation(len(names), before, after, added / rest if rest else None)


def _computed_before(kernels: Iterable[str]) -> Iterator[str]:
    """Kernels that compute what an earlier one computed.

    XLA deletes an original that only copies replace, so that the first copy is no repetition.
    """
    computed = set[str]()
    for name in kernels:
        original = _REMATERIALISED.split(name)[0]
        if original in computed and original != name:
            yield name
        computed.add(original)


def relative(source: str) -> str:
    """A source line, relative to the current folder."""
    return source.removeprefix(f"{Path.cwd()}/")
