"""Sizes as XLA, CUDA and libtpu print them: `1.50GiB`, `18.33G`, `184549376B`, `6291456 bytes`.

All their units are powers of 1024.
"""

import re
from dataclasses import dataclass

# How far a size of at least 1.00 is from its two decimals, as a share.
ROUNDED = 0.005
# Without groups, so that other expressions can contain it.
_UNIT = r"(?:[KMGTPE]i?B?|B|bytes)"
SIZE = rf"\d+(?:\.\d+)?\s?{_UNIT}?"
# A log that was cut off within a number has no unit after it.
SIZE_WITH_UNIT = rf"\d+(?:\.\d+)?\s?{_UNIT}\b"
_PARTS = re.compile(r"(?P<number>\d+(?:\.(?P<decimals>\d+))?)\s?(?P<unit>[KMGTPE]?)")
_POWERS = {unit: 1024**power for power, unit in enumerate(("", *"KMGTPE"))}


@dataclass(frozen=True, slots=True)
class LoggedSize:
    """A size in a log.

    Attributes:
      size_bytes: the printed number in bytes, rounded to an integer.
      slack_bytes: by how much the true size can differ, because the log rounded it; 0 if exact.
    """

    size_bytes: int
    slack_bytes: int = 0

    @property
    def most_bytes(self) -> int:
        """The largest size that the log's number can represent."""
        return self.size_bytes + self.slack_bytes

    def __add__(self, other: "LoggedSize") -> "LoggedSize":
        return LoggedSize(self.size_bytes + other.size_bytes, self.slack_bytes + other.slack_bytes)

    def may_be(self, size_bytes: int) -> bool:
        """Whether the log's number can represent `size_bytes`."""
        return abs(size_bytes - self.size_bytes) <= self.slack_bytes


def parse_size(text: str) -> LoggedSize:
    """The size that `text`, a match of `SIZE`, contains.

    >>> parse_size("1.50GiB")
    LoggedSize(size_bytes=1610612736, slack_bytes=5368710)
    >>> parse_size("184549376B")
    LoggedSize(size_bytes=184549376, slack_bytes=0)
    """
    match = _PARTS.match(text)
    if match is None:
        raise ValueError(f"expected a size such as 1.50GiB, found {text!r}")
    power = _POWERS[match["unit"]]
    decimals = len(match["decimals"] or "")
    slack_bytes = -(-power // (2 * 10**decimals)) if power > 1 else 0
    return LoggedSize(round(float(match["number"]) * power), slack_bytes)
