"""Records what an H100 decided for the ResNets, without dumps: locks, digests, memory, times.

    PYTHONPATH=. python tests/gpu/h100_resnets/record.py DUMPS RUNS

DUMPS contains what `xlapipe dump WORKLOAD --target attached --tuning tune` wrote there, with the
time record of `xlapipe run --profile --record`, and RUNS, as WORKLOAD.run.json, what the latter
printed.
Dumps would be compiled by every `make dump-all`, which takes a minute more for each.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.gpu.fidelity.record import digests
from xlapipe.dump.autotune_lock import LOCK
from xlapipe.dump.dump import open_dump
from xlapipe.dump.normal_form.plan import read_normal_form
from xlapipe.dump.run_record import RUN_RECORD
from xlapipe.inductor.open_path import open_path

HERE = Path(__file__).resolve().parent
RECORD = HERE / "record.json"


def record_of(dump: Path, run: Path) -> dict[str, Any]:
    """Digests, bytes and seconds of one workload; times are medians of 30 profiled calls."""
    times = open_path(dump).time_record
    assert times is not None
    entry: dict[str, Any] = {
        **digests(read_normal_form(dump)),
        "total_bytes": open_dump(dump).plan.total_bytes_used,
        "kernel_seconds": sum(times.seconds_of.values()),
        "span_seconds": times.measured.span_seconds,
        "call_seconds": times.measured.call_seconds,
    }
    if run.is_file():
        entry["memory"] = json.loads(run.read_text(encoding="utf-8"))["memory"]
    return entry


def main(dumps: str, runs: str) -> None:
    record: dict[str, Any] = {}
    for dump in sorted(Path(dumps).glob("resnet50-*/h100_*")):
        name = dump.parent.name
        made = json.loads((dump / RUN_RECORD).read_text(encoding="utf-8"))
        record |= {key: made[key] for key in ("device", "driver", "date", "versions")}
        entry = {"command": made["command"], **record_of(dump, Path(runs) / f"{name}.run.json")}
        record.setdefault("workloads", {})[name] = entry
        (HERE / name).mkdir(exist_ok=True)
        shutil.copy(dump / LOCK, HERE / name / LOCK)
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
