"""What XLA logs of a compile: the bytes that it saves by computing values again."""

import re
from pathlib import Path

# XLA logs what HloRematerialization did at level 1; jax sets the least level to 1 otherwise.
LOGGED = {"TF_CPP_VMODULE": "hlo_rematerialization=1", "TF_CPP_MIN_LOG_LEVEL": "0"}
INFORMATION = re.compile(r"I\d{4} ")
_DONE = re.compile(
    r"Rematerialized [1-9]\d* instructions in module .*\n"
    r".*Peak memory usage of module now .*\((\d+) bytes\), was .*\((\d+) bytes\)"
)


def rematerialised_bytes(log_path: Path) -> tuple[int, int] | None:
    """XLA's estimates of the peak before and after; None if it computes nothing again.

    The module is the last one, after those of kernels that were tuned.
    """
    try:
        matches = _DONE.findall(log_path.read_text(errors="replace"))
    except OSError:
        return None
    return (int(matches[-1][1]), int(matches[-1][0])) if matches else None
