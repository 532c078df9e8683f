"""Choose a result for each tuned instruction of a module."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp
from types import MappingProxyType

from xlapipe.time.predicted_locks.basis import Basis
from xlapipe.time.predicted_locks.block_limits import (
    block_limits,
    excludes_triton,
    fitted,
    is_within,
)
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, form_of
from xlapipe.time.predicted_locks.instructions import is_generic
from xlapipe.time.predicted_locks.known_results import KnownResult, KnownResults

# Largest distance, in octaves, from which a result is used.
_FURTHEST = 24.0
_OTHER_DEVICE = 2.0
_VOTERS = 20
# Another tuning chooses the other backend of a product as often as a margin of this many octaves
# has a logistic distribution's probability; where the margin is not known, that often.
_NEAR_TIE, _ASSUMED_CHANCE = 0.1, 0.1
_OTHER_BACKEND = {"TRITON": "CUBLASLT_FISSION", "CUBLASLT_FISSION": "TRITON"}
_WITH_WORKSPACE = ("CUBLASLT", "CUBLASLT_FISSION")
_NATIVE = KnownResult("", "backend: NATIVE_EMITTER backend_config { native_emitter { } }", "v1")
# Share of votes.
_AGREEING = 0.8
_OF_THE_TUNER = re.compile("autotun|triton|cublas|cudnn|gemm|determin|emitter|fission")


def decides_tuning(options: Iterable[str]) -> bool:
    """Whether one of these XLA options decides what the tuner chooses from, or whether it runs.

    Results that were recorded without the option are then no evidence.
    """
    return any(_OF_THE_TUNER.search(name) is not None for name in options)


@dataclass(frozen=True)
class PredictedLock:
    """Results for the tuned instructions of a module.

    Attributes:
      basis: number of instructions by `Basis`.
      other_choice: the probability that the device's results have a workspace of cuBLASLt where
        these have none, or none where these have one.
      chosen: the result of each instruction that has one, by fingerprint.
      defaults: what XLA itself chooses for loops and reductions without one, which it would
        otherwise compile to find out.
    """

    basis: Mapping[str, int]
    other_choice: float
    chosen: Mapping[str, KnownResult]
    defaults: Mapping[str, KnownResult]


def predict_lock(instructions: Iterable[str], known: KnownResults) -> PredictedLock:
    """Predict what the device's tuner would choose."""
    by_fingerprint = known.by_fingerprint()
    basis = dict.fromkeys(map(str, Basis), 0)
    chosen, defaults = {}, {}
    products: list[tuple[KnownResult, float]] = []
    for text in instructions:
        key = fingerprint(text)
        result = by_fingerprint.get(key) if key is not None else None
        how, agreement = Basis.KNOWN, 1.0
        form = form_of(text) if result is None else None
        if form is not None:
            result, agreement = nearest(form, known, block_limits(text))
            if result is not None:
                result = replace(result, config=fitted(result.config, text))
            is_sure = result is not None and form.is_product and agreement >= _AGREEING
            how = Basis.NEAREST if is_sure else Basis.UNSURE
        elif result is None:
            how = Basis.DEFAULT
        if result is not None and result.other_jaxlib and how is not Basis.UNSURE:
            how = Basis.OTHER_JAXLIB
        basis[how] += 1
        if result is not None and " dot(" in text:
            products.append((result, agreement))
        if result is not None and key is not None:
            chosen[key] = result
        elif key is not None and is_generic(text):
            defaults[key] = replace(_NATIVE, fingerprint=key)
    return PredictedLock(basis, round(other_choice(products), 3), chosen, defaults)


def other_choice(products: Iterable[tuple[KnownResult, float]]) -> float:
    """The probability that the device's results of a program differ in whether one has a workspace.

    Products of a program err together, since the same results vote for them. Of each, the result
    and the probability of its backend are given.
    """
    others: dict[bool, list[float]] = {True: [], False: []}
    for result, agreement in products:
        others[has_workspace(result)].append(1 - agreement)
    return min(others[True]) if others[True] else max(others[False], default=0.0)


def has_workspace(result: KnownResult) -> bool:
    """Whether a result is of cuBLASLt, whose workspace is part of the plan."""
    return result.backend in _WITH_WORKSPACE


def nearest(
    form: Form, known: KnownResults, limits: Mapping[str, int] = MappingProxyType({})
) -> tuple[KnownResult | None, float]:
    """The nearest complete result of the backend that most of the nearest results have.

    Votes weigh less with the distance, and a result whose backend was hardly faster than the other
    one votes for both. Among equally near results, one of the installed jaxlib is first, then that
    of the most programs. With the probability of its backend.
    """
    without_triton = excludes_triton(limits)
    near = sorted(
        (
            (
                far + _OTHER_DEVICE * row.other_device,
                row.other_jaxlib,
                -len(row.programs),
                repr(row),
                row,
            )
            for row in known.results
            if row.form is not None
            and (far := form.distance(row.form)) is not None
            and far <= _FURTHEST
            and not (without_triton and row.backend == "TRITON")
        ),
        key=lambda item: item[:4],
    )
    votes: dict[str, float] = defaultdict(float)
    for far, *_, row in near[:_VOTERS]:
        weight, other = 1 / (1 + far) ** 2, _OTHER_BACKEND.get(row.backend, row.backend)
        chance = _chance_of_another(row) if other != row.backend else 0.0
        votes[row.backend] += weight * (1 - chance)
        votes[other] += weight * chance
    if without_triton:
        votes.pop("TRITON", None)
    if not votes:
        return None, 0.0
    backend = max(votes, key=lambda name: (votes[name], name))
    complete = (
        row
        for *_, row in near
        if row.is_complete and row.backend == backend and is_within(row.config, limits)
    )
    return next(complete, None), votes[backend] / sum(votes.values())


def _chance_of_another(row: KnownResult) -> float:
    """The probability that another tuning chooses the other backend."""
    if row.margin is None:
        return _ASSUMED_CHANCE
    return 1 / (1 + exp(row.margin / _NEAR_TIE))
