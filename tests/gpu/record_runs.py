"""Runs executables that were built without a GPU, and fresh builds on the GPU; records the results.

    python tests/gpu/record_runs.py BUILDS OUT.json

BUILDS contains a folder of `xlapipe build … --autotune-lock …` per workload, built on a machine
without a GPU, and named as the workload's reference with `=` instead of `:`, e.g.
`models.qwen3.workloads=qwen3_step`. Each step is a separate process, as when a user runs it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from xlapipe.dumps.dump import open_dump
from xlapipe.dumps.normal_plan import read_normal_form
from xlapipe.dumps.run_record import run_record
from xlapipe.environment.machine import Machine

INPUTS = ["--inputs", "random:7", "--repeat", "30"]


def xlapipe(*arguments: str | Path, processes: int = 1) -> Any:
    """The JSON output of a command, which `processes` processes run."""
    cli = [sys.executable, "-m", "xlapipe.cli"]
    command = [*cli, *map(str, arguments), "--json"]
    if processes > 1:
        command = [*cli, "launch", "--processes", str(processes), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def record_of(build: Path, scratch: Path) -> dict[str, Any]:
    """The record of one workload: the given build, and a build of the same lock on this GPU."""
    reference = build.name.replace("=", ":")
    lock = build / "autotune_lock.json"
    fresh_folder = scratch / build.name
    prebuilt = xlapipe("run", build, *INPUTS)
    made = xlapipe(
        "build", reference, "--target", "attached", "--autotune-lock", lock, "--out", fresh_folder
    )
    fresh = xlapipe("run", fresh_folder, *INPUTS)
    built, made_there = map(read_normal_form, (build, fresh_folder))
    return {
        "outputs_bit_identical": prebuilt["outputs"] == fresh["outputs"],
        "plan_identical": built.canonical.plan == made_there.canonical.plan,
        "outputs": len(prebuilt["outputs"]),
        "thunks": len(open_dump(build).plan.thunks or ()),
        "load_seconds": prebuilt["load_seconds"],
        "build_on_device_seconds": made["seconds"],
        "median_call_seconds": prebuilt["median_call_seconds"],
        "fresh_median_call_seconds": fresh["median_call_seconds"],
        "memory": prebuilt["memory"],
        "autotuning": prebuilt["autotuning"],
    }


def main(builds: str, out: str) -> None:
    records = {}
    for build in sorted(Path(builds).iterdir()):
        with tempfile.TemporaryDirectory() as scratch:
            manifest = open_dump(build).manifest
            records[manifest.workload] = record_of(build, Path(scratch))
            print(manifest.workload, json.dumps(records[manifest.workload]), flush=True)
    gpu = Machine.here().gpu()
    provenance = run_record(
        device=gpu.name if gpu is not None else "unknown",
        driver=gpu.driver_version if gpu is not None else None,
        versions=manifest.versions,
        command=["python", *sys.argv],
    )
    text = json.dumps({**provenance, "workloads": records}, indent=1, sort_keys=True)
    Path(out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
