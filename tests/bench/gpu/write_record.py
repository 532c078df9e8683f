"""Writes what sides printed that `compare.run_together` ran, as a record of a GPU."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xlapipe.dump.run_record import run_record

# Of the log of a side that failed.
LOG_LINES = 20


def write_record(out: Path, names: Sequence[str], sides: Sequence[dict[str, Any]]) -> None:
    """Writes the timings of all sides, also of those that failed later, and the errors of these.

    Args:
      names: of the sides, in the same order.

    Raises:
      SystemExit: no side printed a timing; the errors are printed.
    """
    errors = {
        name: side["error"] for name, side in zip(names, sides, strict=True) if "error" in side
    }
    for name, side in zip(names, sides, strict=True):
        if "error" in side:
            lines = [f"{name}: {side['error']}", *side["log"].splitlines()[-LOG_LINES:]]
            print("\n".join(lines), file=sys.stderr)
    about = next((side for side in sides if "device" in side), None)
    if about is None:
        raise SystemExit("no side printed a timing")
    # A framework's line may go on after its version: "torch 2.11, transformers 5.17".
    frameworks = [side["framework"].partition(",")[0] for side in sides if "framework" in side]
    record = run_record(
        device=about["device"],
        driver=about["driver"],
        versions=dict(framework.split() for framework in frameworks),
        command=["python", *sys.argv],
    )
    record["timings"] = [timing for side in sides for timing in side["timings"]]
    record |= {"errors": errors} if errors else {}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for timing in record["timings"]:
        milliseconds = f"{timing['median_seconds'] * 1e3:9.4f} ms"
        print(f"{milliseconds}  {timing['case']}: {timing['variant']}")
