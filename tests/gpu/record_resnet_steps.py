"""Times training steps of ResNet-50, of this repository and of torch; writes the record.

    PYTHONPATH=. python tests/gpu/record_resnet_steps.py OUT.json [SECONDS]

The sides of `tests/bench/gpu/compare.py resnet` compile at the same time, and are timed one after
another. A side that takes more than SECONDS in all is stopped.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "gpu"))

from compare import COMPARISONS, run_together
from write_record import write_record


def main(out: str, limit_seconds: str = "300") -> None:
    """Writes what both sides printed, and the error of a side that failed."""
    names = COMPARISONS["resnet"]
    write_record(Path(out), names, run_together(names, float(limit_seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
