"""When the phases of a start ended, in seconds since the process started. Imports no jax."""

import os
import time
from pathlib import Path

_START_TIME_FIELD = 22  # of /proc/PID/stat, counted from 1


class Timeline:
    """Ends of phases, by name, in the order in which they ended."""

    def __init__(self) -> None:
        self._origin = _process_start()
        self.seconds: dict[str, float] = {}

    def mark(self, phase: str) -> float:
        """Records that a phase ended now; returns the seconds since the process started."""
        self.seconds[phase] = time.perf_counter() - self._origin
        return self.seconds[phase]


def _process_start() -> float:
    """time.perf_counter() at the process's start, to 10 ms; now where Linux does not report it."""
    now = time.perf_counter()
    try:
        # The second field, the command's name in parentheses, may contain spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[_START_TIME_FIELD - 3]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(age, 0.0)
