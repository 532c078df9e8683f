"""What XLA logs of a compile: its passes, and the bytes that it saves by computing values again."""

import re
from pathlib import Path

# XLA logs at level 1 what HloRematerialization did, and each pass when it starts; jax sets the
# least level to 1 otherwise.
LOGGED = {
    "TF_CPP_VMODULE": "hlo_rematerialization=1,hlo_pass_pipeline=1",
    "TF_CPP_MIN_LOG_LEVEL": "0",
}
INFORMATION = re.compile(r"I\d{4} ")
_PASS = re.compile(r"hlo_pass_pipeline\.cc:\d+\]\s+HLO pass (\S+)$", re.MULTILINE)
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


def last_pass(log: str) -> tuple[str, bool] | None:
    """The pass that XLA began last, and whether it has not ended; None if the log has none."""
    passes = list(_PASS.finditer(log))
    return (passes[-1][1], "] HLO pass: " not in log[passes[-1].end() :]) if passes else None
