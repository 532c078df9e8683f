"""Runs executables that were built without a GPU, and fresh builds on the GPU; records the results.

    python tests/gpu/record_runs.py BUILDS OUT.json [AT_ONCE [FRESH]]

BUILDS contains a folder of `xlapipe build … --tuning …` per workload, built on a machine
without a GPU, and named as the workload's reference with `=` instead of `:`, e.g.
`models.qwen3.workloads=qwen3_step`. Each step is a separate process, as when a user runs it.
AT_ONCE workloads run at the same time, each in its share of the GPU's memory; their times are then
longer. FRESH contains builds that were made on this GPU before, with the same names, and beside
each, as NAME.json, what its `build --target attached --tuning … --json` printed.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from provenance import provenance

from xlapipe.dump.dump import open_dump
from xlapipe.dump.normal_form.plan import read_normal_form

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


def build_here(build: Path, folder: Path) -> Any:
    """A build of the same lock on this GPU, unless `folder` has it: the output of the command."""
    output = folder.with_name(f"{folder.name}.json")
    if output.is_file():
        return json.loads(output.read_text(encoding="utf-8"))
    reference, lock = build.name.replace("=", ":"), build / "autotune_lock.json"
    target = ("--target", "attached", "--tuning", lock)
    return xlapipe("build", reference, *target, "--out", folder)


def record_of(build: Path, fresh_builds: Path) -> dict[str, Any]:
    """The record of one workload: the given build, and a build of the same lock on this GPU."""
    fresh_folder = fresh_builds / build.name
    prebuilt = xlapipe("run", build, *INPUTS)
    made = build_here(build, fresh_folder)
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


def main(builds: str, out: str, at_once: str = "1", fresh: str | None = None) -> None:
    if int(at_once) > 1:
        os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{0.9 / int(at_once):.2f}"
    folders = sorted(Path(builds).iterdir())
    names = [open_dump(folder).manifest.workload for folder in folders]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(int(at_once)) as pool:
        made = pool.map(lambda build: record_of(build, Path(fresh or scratch)), folders)
        records = {}
        for name, record in zip(names, made, strict=True):
            records[name] = record
            print(name, json.dumps(record), flush=True)
    versions = open_dump(folders[0]).manifest.versions
    data = {**provenance(versions), "at_once": int(at_once), "workloads": records}
    text = json.dumps(data, indent=1, sort_keys=True)
    Path(out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
