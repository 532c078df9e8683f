"""Times training steps of ResNet-50, of this repository and of torch; writes the record.

    PYTHONPATH=. python tests/gpu/record_resnet_steps.py OUT.json [SECONDS]

The sides of `tests/bench/gpu/compare.py resnet` compile at the same time, and are timed one after
another. A side that takes more than SECONDS in all is stopped.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "gpu"))

from compare import COMPARISONS, run_together

from xlapipe.dumps.run_record import run_record


def main(out: str, limit_seconds: str = "300") -> None:
    """Writes what both sides printed, and the error of a side that failed."""
    sides = run_together(COMPARISONS["resnet"], float(limit_seconds))
    about = next(side for side in sides if "device" in side)
    record = run_record(
        device=about["device"],
        driver=about["driver"],
        versions=dict(side["framework"].split() for side in sides if "framework" in side),
        command=["python", *sys.argv],
    )
    record["timings"] = [timing for side in sides for timing in side["timings"]]
    record |= {"errors": errors} if (errors := [s["error"] for s in sides if "error" in s]) else {}
    Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for timing in record["timings"]:
        print(f"{timing['variant']:40} {timing['median_seconds'] * 1e3:8.3f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
