"""What a plan may take of a device's memory: the one value of `--memory`."""

import math
from dataclasses import dataclass
from pathlib import Path

from xlapipe.errors import XlapipeError
from xlapipe.project_file import stated_text
from xlapipe.report.units import parse_bytes

# What the process may use by default.
_USABLE = "usable"
_EXPECTED = (
    "expected a share of the device's memory above 0 and up to 1, bytes, or `usable`, each also "
    "less what must stay free; fix: write e.g. 0.9, 60GB, usable-4GB or 0.9-4GB"
)


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """What a plan may take of a device's memory.

    Attributes:
      share: of the device's memory that the process may use; XLA keeps plans within it. None for
        jax's on GPUs, and for all that XLA's compiler leaves to a program on TPUs.
      limit_bytes: what a plan may take instead of this share, which XLA does not know.
      reserved_bytes: what must stay free of it, for other live arrays and programs.
    """

    share: float | None = None
    limit_bytes: int | None = None
    reserved_bytes: int = 0


def memory_budget(value: str | float | None) -> MemoryBudget:
    """The budget that a user writes: a number up to 1 is a share, any other one is bytes.

    None is what the project states, else jax's share.

    >>> memory_budget("usable-4GB")
    MemoryBudget(share=None, limit_bytes=None, reserved_bytes=4000000000)
    >>> memory_budget(0.5).share, memory_budget("60GB").limit_bytes
    (0.5, 60000000000)

    Raises:
      XlapipeError: it has another form.
    """
    where = "--memory"
    if value is None and (stated := stated_text(Path.cwd(), "memory")):
        where, value = stated
    if value is None:
        return MemoryBudget()
    text = value if isinstance(value, str) else f"{value:.12f}".rstrip("0").rstrip(".")
    whole, minus, reserved = text.partition("-")
    try:
        reserved_bytes = parse_bytes(reserved) if minus else 0
        if whole.strip() == _USABLE:
            return MemoryBudget(reserved_bytes=reserved_bytes)
        number = _number(whole)
        if number is not None and number <= 1:
            if not number > 0:  # not for NaN
                raise ValueError
            return MemoryBudget(share=number, reserved_bytes=reserved_bytes)
        if number is not None and not number.is_integer():
            raise ValueError
        return MemoryBudget(limit_bytes=parse_bytes(whole), reserved_bytes=reserved_bytes)
    except ValueError:
        raise XlapipeError(f"{where} {text}: {_EXPECTED}") from None


def _number(text: str) -> float | None:
    """A number without a unit; infinite ones and NaN are none that a budget has."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        raise ValueError(text)
    return number
