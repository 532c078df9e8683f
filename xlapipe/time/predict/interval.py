"""The interval of a predicted time, and which of two steps is faster, from errors at first sight.

Programs that nothing had been fitted to were predicted and then timed. How far off they were
depends on what they consist of; quantile regression on these errors gave the coefficients in
`calibrations/errors.json`, which `tests/gpu/time_zoo/fit_errors.py` writes.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from xlapipe.time.predict.kernel_time import ASSUMED

# Kinds of kernels by whose share of the time errors grow: their time depends on the data, or only
# the name of the library's call is known.
_SCATTER, _LIBRARY = "scatter", ("cu", "fft", "xla.", "__gpu", "__cublas$tri")
_PRODUCTS = "cublas"
# Kinds of kernels that mark a step of machine learning, where they take this share of its time:
# such steps are known best.
_LEARNING, _LEARNING_SHARE = ("f16", "f8", "__cudnn$conv", "__cudnn$fmha"), 0.15
# Greater spreads of similar kernels were not followed by greater errors.
_MOST_SPREAD = 0.5

Share = tuple[str, str, float, float]
"""Kind, basis, seconds and spread of a kernel, or of kernels of one kind and basis together."""


@dataclass(frozen=True)
class Errors:
    """How far off predictions were at first sight; logarithms of measured / predicted.

    Attributes:
      above, below: coefficients of `traits` for the 95 % quantiles of the errors in each direction.
      scaled: additional error on both sides for a GPU that was not measured.
      untuned_above, untuned_below: of a step without autotune results, how far the prediction for
        the plan that a device tunes is from it; combined as squares, as independent.
      guessed_above, guessed_below: the same of a step with predicted autotune results, some of
        which are of another instruction or another jaxlib.
      pair_constant, pair_kinds: scale of the logistic distribution of the error of the ratio of two
        variants of a step, and how it grows with what they do not have in common.
    """

    above: Mapping[str, float]
    below: Mapping[str, float]
    scaled: float
    untuned_above: float
    untuned_below: float
    guessed_above: float
    guessed_below: float
    pair_constant: float
    pair_kinds: float

    def factors(
        self,
        traits: Mapping[str, float],
        *,
        more: float = 0.0,
        untuned: bool = False,
        guessed: bool = False,
    ) -> tuple[float, float]:
        """Low and high end of the interval of nine of ten programs, as multiples of the time."""
        tuner = (0.0, 0.0)
        if untuned:
            tuner = self.untuned_below, self.untuned_above
        elif guessed:
            tuner = self.guessed_below, self.guessed_above
        below, above = (
            math.hypot(sum(parts[name] * value for name, value in traits.items()), tuned) + more
            for parts, tuned in zip((self.below, self.above), tuner, strict=True)
        )
        return math.exp(-below), math.exp(above)


@cache
def shipped_errors() -> Errors:
    file = resources.files("xlapipe.time.predict").joinpath("calibrations").joinpath("errors.json")
    return Errors(**json.loads(file.read_text(encoding="utf-8"))["errors"])


def spreads_of(shares: Iterable[Share]) -> dict[str, float]:
    """Spread of each kind's share of the time: kernels of one kind are off in one direction."""
    shares = list(shares)
    total = sum(seconds for _, _, seconds, _ in shares) or 1.0
    spreads: dict[str, float] = {}
    for kind, _, seconds, spread in shares:
        spreads[kind] = spreads.get(kind, 0.0) + seconds * spread / total
    return spreads


def traits(shares: Iterable[Share], seconds: float) -> dict[str, float]:
    """What the error of a step's time depends on."""
    shares = list(shares)
    total = sum(part for _, _, part, _ in shares)

    def share(chosen: Iterable[float]) -> float:
        return sum(chosen) / total if total else 0.0

    kinds = min(_MOST_SPREAD, math.hypot(*spreads_of(shares).values()))
    return {
        "constant": 1.0,
        "kinds": kinds,
        "kinds of numerics": 0.0 if is_learning(shares) else kinds,
        "waiting": max(0.0, 1 - total / seconds) if seconds else 0.0,
        "scatter": share(part for kind, _, part, _ in shares if _SCATTER in kind),
        "library": share(part for kind, _, part, _ in shares if _is_library(kind)),
        "assumed": share(part for _, basis, part, _ in shares if basis == ASSUMED),
    }


def is_learning(shares: Iterable[Share]) -> bool:
    """Whether kernels are of a step of machine learning, not of numerics."""
    shares = list(shares)
    total = sum(seconds for _, _, seconds, _ in shares)
    learned = sum(part for kind, _, part, _ in shares if any(name in kind for name in _LEARNING))
    return learned > _LEARNING_SHARE * total


def _is_library(kind: str) -> bool:
    return kind.startswith(_LIBRARY) and not kind.startswith(_PRODUCTS)


def probability_faster(
    a: tuple[float, Mapping[str, float]], b: tuple[float, Mapping[str, float]], errors: Errors
) -> float:
    """The probability that variant A of a step is faster than B: seconds and `spreads_of` each.

    Kernels that both have are off by the same factor, so only what differs is uncertain.
    """
    (seconds_a, spreads_a), (seconds_b, spreads_b) = a, b
    differing = math.hypot(
        *(
            spreads_a.get(kind, 0.0) - spreads_b.get(kind, 0.0)
            for kind in spreads_a.keys() | spreads_b.keys()
        )
    )
    scale = math.hypot(errors.pair_constant, errors.pair_kinds * differing)
    return 0.5 * (1 + math.tanh(math.log(seconds_b / seconds_a) / scale / 2))
