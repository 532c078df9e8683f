"""Intervals of predicted times, and which of two variants is faster."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from xlapipe.time.predict.interval import (
    Share,
    probability_faster,
    shipped_errors,
    spreads_of,
    traits,
)
from xlapipe.time.predict.kernel_time import ASSUMED, CALIBRATED
from xlapipe.time.predicted_locks.basis import Basis, is_guessed

FIRST_SIGHT = Path(__file__).parents[1] / "gpu/time_zoo/records/first_sight.json"
PRODUCT: Share = ("cublas bf16", CALIBRATED, 1e-3, 0.05)


def width(*shares: Share, more: float = 0.0) -> float:
    seconds = sum(part for *_, part, _ in shares)
    low, high = shipped_errors().factors(traits(shares, seconds), more=more)
    assert low < 1 < high
    return high / low


def test_intervals_are_wider_for_kernels_that_are_known_less() -> None:
    known = width(PRODUCT)
    assert (
        width(("cublas bf16", CALIBRATED, 1e-3, 0.03))
        < known
        < width(PRODUCT, more=shipped_errors().scaled)
    )
    for strange in (
        ("input scatter", CALIBRATED, 1e-3, 0.05),
        ("cublas bf16", ASSUMED, 1e-3, 0.4),
        ("loop gather", CALIBRATED, 1e-3, 0.5),
    ):
        assert width(PRODUCT, strange) > 1.1 * known


def test_an_untuned_step_may_be_shorter_than_predicted() -> None:
    errors, known = shipped_errors(), traits([PRODUCT], 1e-3)
    (low, high), (shorter, longer) = (errors.factors(known, untuned=x) for x in (False, True))
    assert shorter < 0.8 < low
    assert high < longer < 1.1 * high


def test_the_tuner_may_choose_otherwise_than_guessed() -> None:
    errors, known = shipped_errors(), traits([PRODUCT], 1e-3)
    (low, high), (shorter, longer) = (errors.factors(known, guessed=x) for x in (False, True))
    untuned, _ = errors.factors(known, untuned=True, guessed=True)
    assert untuned < shorter < 0.88 < low
    assert high < longer
    assert [is_guessed({basis: 1}) for basis in Basis] == [False, True, True, True, False]


def test_the_shipped_intervals_hold_nine_of_ten_programs_at_first_sight() -> None:
    inside = []
    for zoo in json.loads(FIRST_SIGHT.read_text(encoding="utf-8"))["zoos"].values():
        for row in zoo["programs"].values():
            shares = [(kind, basis, s, spread / s) for kind, basis, s, spread in row["kinds"] if s]
            low, high = shipped_errors().factors(traits(shares, row["seconds"]))
            inside.append(low <= row["measured_seconds"] / row["seconds"] <= high)
    assert sum(inside) / len(inside) == pytest.approx(0.9, abs=0.03)


def test_kernels_that_both_variants_have_leave_no_doubt() -> None:
    errors = replace(shipped_errors(), pair_constant=0.01, pair_kinds=0.7)
    product, row_sum = {"cublas bf16": 0.2}, {"cublas bf16": 0.1, "input row reduction": 0.1}
    alike = probability_faster((1.00e-3, product), (1.03e-3, product), errors)
    apart = probability_faster((1.00e-3, product), (1.03e-3, row_sum), errors)
    assert 0.5 < apart < 0.6 < 0.9 < alike < 1
    assert probability_faster((1.03e-3, product), (1.00e-3, product), errors) == pytest.approx(
        1 - alike
    )
    assert probability_faster((1e-3, product), (1e-3, row_sum), errors) == 0.5


def test_spreads_of_a_kind_add_up() -> None:
    shares = [("loop", CALIBRATED, 1e-3, 0.1), ("loop", CALIBRATED, 2e-3, 0.2), PRODUCT]
    spreads = spreads_of(shares)
    assert spreads["loop"] == pytest.approx(0.5 / 4)
    assert spreads["cublas bf16"] == pytest.approx(0.05 / 4)
    assert traits(shares, 5e-3)["kinds"] == pytest.approx(math.hypot(0.5, 0.05) / 4)
    assert traits(shares, 5e-3)["waiting"] == pytest.approx(0.2)
