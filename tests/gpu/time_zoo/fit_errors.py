"""Fits the errors of predicted times: xlapipe/time/predict/calibrations/errors.json.

    PYTHONPATH=. python tests/gpu/time_zoo/fit_errors.py    # from records/first_sight.json

Prints coverage and width of the intervals of each zoo by what was fitted to the others. Errors of
pairs of variants, and of plans without a lock, stay as they are (docs/lab/what_left.md).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from compare import RECORDS
from scipy.optimize import linprog

from xlapipe.time.predict.interval import Errors, is_learning, shipped_errors, traits

ERRORS = Path(__file__).parents[3] / "xlapipe/time/predict/calibrations/errors.json"
QUANTILE = 0.95
# Largest coefficients, so that a trait of few programs does not get all of their error.
_MOST = {"kinds": 3.0, "kinds of numerics": 3.0, "waiting": 0.5, "scatter": 0.8, "assumed": 0.6}
# From products of bfloat16 of 50 µs or more on an A100, a B200, a GB200 and an RTX PRO 6000, 4,000
# in all: nine of ten are within e ** ±0.41, 0.35, 0.36 and 0.34 of what is predicted from an H200's
# and datasheets. Times by NVIDIA: ai-dynamo/aiconfigurator, commit 095f58a, Apache-2.0.
_SCALED = 0.36


@dataclass(frozen=True)
class Program:
    """A program at first sight.

    Attributes:
      traits: what its error depends on.
      error: logarithm of measured / predicted.
      learning: whether it is of machine learning, not of numerics.
    """

    zoo: str
    traits: Mapping[str, float]
    error: float
    learning: bool


def programs() -> Iterator[Program]:
    """The programs of the record of first sights."""
    zoos = json.loads((RECORDS / "first_sight.json").read_text(encoding="utf-8"))["zoos"]
    for zoo, data in zoos.items():
        for row in data["programs"].values():
            shares = [
                (kind, basis, seconds, spread / seconds if seconds else 0.0)
                for kind, basis, seconds, spread in row["kinds"]
            ]
            error = math.log(row["measured_seconds"] / row["seconds"])
            yield Program(zoo, traits(shares, row["seconds"]), error, is_learning(shares))


def _quantile(rows: Sequence[Mapping[str, float]], errors: Sequence[float]) -> dict[str, float]:
    """Coefficients, none negative, of a quantile of errors (Koenker and Bassett, 1978)."""
    names, count = list(rows[0]), len(rows)
    table = np.array([[row[name] for name in names] for row in rows])
    costs = [0.0] * len(names) + [QUANTILE] * count + [1 - QUANTILE] * count
    bounds = [(0, _MOST.get(name, 1.0)) for name in names] + [(0, None)] * (2 * count)
    sides = np.hstack([table, np.eye(count), -np.eye(count)])
    result = linprog(costs, A_eq=sides, b_eq=np.array(errors), bounds=bounds, method="highs")
    return {name: round(float(x), 3) for name, x in zip(names, result.x, strict=False)}


def fitted(items: Sequence[Program], pairs: Errors) -> Errors:
    """The errors' coefficients from programs; those of pairs and of tuners as they are."""
    rows = [item.traits for item in items]
    above = _quantile(rows, [item.error for item in items])
    below = _quantile(rows, [-item.error for item in items])
    return replace(pairs, above=above, below=below, scaled=_SCALED)


def coverage(items: Sequence[Program], pairs: Errors) -> Iterator[str]:
    """How often the interval holds the time, and its width: each zoo by the others."""
    rows = []
    for zoo in dict.fromkeys(item.zoo for item in items):
        errors = fitted([item for item in items if item.zoo != zoo], pairs)
        for item in items:
            if item.zoo == zoo:
                low, high = errors.factors(item.traits)
                rows.append((item, low <= math.exp(item.error) <= high, high / low))
    yield "| programs | number | in the interval | median of high / low |"
    yield "|---|--:|--:|--:|"
    families = {"all": {True, False}, "machine learning": {True}, "numerics": {False}}
    for name, family in families.items():
        own = [row for row in rows if row[0].learning in family]
        share, width = sum(inside for _, inside, _ in own) / len(own), median(w for *_, w in own)
        yield f"| {name} | {len(own)} | {share:.1%} | {width:.2f} |".replace("%", " %")


def main() -> None:
    errors = shipped_errors()
    items = list(programs())
    print("\n".join(coverage(items, errors)))
    errors = fitted(items, errors)
    about = {"command": "python tests/gpu/time_zoo/fit_errors.py", "programs": len(items)}
    text = json.dumps({**about, "errors": asdict(errors)}, indent=2)
    ERRORS.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
