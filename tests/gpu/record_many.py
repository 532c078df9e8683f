"""Runs executables for several GPUs that were built without a GPU, and records the results.

    python tests/gpu/record_many.py BUILDS OUT.json

BUILDS is as for record_runs.py; each build used a device's lock. Runs each from one process, from
one process per GPU, and compares with a fresh build of the same lock on the GPUs. Also compares the
gradients of the sharded MLP with those of one device. Each step is a separate process.
"""

import json
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any

from provenance import provenance
from record_runs import INPUTS, xlapipe

from xlapipe.dump.dump import open_dump

REPEAT = [*INPUTS[:2], "--repeat", "2"]


def record_of(build: Path, scratch: Path) -> dict[str, Any]:
    """The record of one workload: from one process, from several, and built on the GPUs."""
    manifest = open_dump(build).manifest
    count = prod((manifest.mesh or {}).values())
    reference, lock = build.name.replace("=", ":", 1), build / "autotune_lock.json"
    fresh_folder = scratch / "fresh"
    one = xlapipe("run", build, *REPEAT)
    several = xlapipe("run", build, *REPEAT, processes=count)
    made = xlapipe(
        "build", reference, "--target", "attached", "--tuning", lock, "--out", fresh_folder
    )
    fresh = xlapipe("run", fresh_folder, *REPEAT)
    plans = [(folder / "plan.txt").read_text() for folder in (build, fresh_folder)]
    return {
        "topology": manifest.topology,
        "autotuning": one["autotuning"],
        "outputs": len(one["outputs"]),
        "thunks": len(open_dump(build).plan.thunks or ()),
        "plan_identical": plans[0] == plans[1],
        "outputs_bit_identical": one["outputs"] == fresh["outputs"],
        "processes": several["processes"],
        "processes_bit_identical": one["outputs"] == several["outputs"],
        "load_seconds": one["load_seconds"],
        "build_on_device_seconds": made["seconds"],
        "median_call_seconds": one["median_call_seconds"],
        "processes_median_call_seconds": several["median_call_seconds"],
        "fresh_median_call_seconds": fresh["median_call_seconds"],
        "memory": one["memory"],
        "devices": one["devices"],
        "processes_devices": several["devices"],
    }


def gradients() -> Any:
    script = Path(__file__).with_name("fsdp_gradients.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{script.name}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(builds: str, out: str) -> None:
    records = {}
    for build in sorted(Path(builds).iterdir()):
        with tempfile.TemporaryDirectory() as scratch:
            manifest = open_dump(build).manifest
            name = f"{manifest.workload} {manifest.topology}"
            records[name] = record_of(build, Path(scratch))
            print(name, json.dumps(records[name]), flush=True)
    about = provenance(manifest.versions)
    record = {**about, "workloads": records, "gradients": gradients()}
    Path(out).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
