"""The evidence for predicted results of tuning."""

from collections.abc import Mapping
from enum import StrEnum


class Basis(StrEnum):
    """The evidence for a result."""

    KNOWN = "known"  # the same instruction is in a known lock
    OTHER_JAXLIB = "of another jaxlib"  # as known or nearest, and of another jaxlib's tuner
    NEAREST = "nearest"  # that of the nearest product in a known lock, and most others near it
    UNSURE = "unsure"  # of a product or a library call: those near it disagree, or none is near
    DEFAULT = "default"  # XLA's own choice without autotune results


def is_guessed(predicted_lock: Mapping[str, int] | None) -> bool:
    """Whether the device's tuner may choose otherwise than the predicted results."""
    guesses = (Basis.OTHER_JAXLIB, Basis.NEAREST, Basis.UNSURE)
    return any((predicted_lock or {}).get(basis) for basis in guesses)


def shares_text(basis: Mapping[str, int]) -> str:
    """Number of tuned instructions by the basis of their results, in words."""
    return ", ".join(f"{basis[name]} {name}" for name in Basis if basis.get(name))
