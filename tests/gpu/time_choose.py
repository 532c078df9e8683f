"""Times the executables that `record_choose.py build` made, on the attached GPU.

    python tests/gpu/time_choose.py BUILDS OUT.jsonl --until SECONDS

`BUILDS/programs.json` lists the programs, most important first. Each runs in a process of its own,
which first prepares its inputs and then waits for its turn on the GPU, so that one program at a
time computes. Those without an executable are built here, on the processor. Those of the basis
`tuned` are built for the attached GPU, tuned by XLA's autotuner as under `jax.jit`, and come last.
A line is written for each program when it ends. No program starts after `--until` seconds.
"""

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from provenance import provenance

TURN = Path("/tmp/choose_turn")
# Processes that prepare themselves at the same time, and the bytes of all their memory pools.
_AT_ONCE, _BUILDS_AT_ONCE, _POOLS_BYTES = 6, 8, 120e9
_DEVICE_BYTES = 150.1e9
# Of the timed calls: the least and largest number, and the seconds they should take together.
_LEAST_CALLS, _MOST_CALLS, _TIMED_SECONDS = 2, 30, 0.35
_LONGEST_SECONDS = 90.0


@contextmanager
def turn() -> Any:
    """Waits until no other program computes on the GPU."""
    with TURN.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _host_value(leaf: Any, number: int) -> Any:
    """As `xlapipe run --inputs random:0`, but large arrays repeat a million values."""
    import jax
    import numpy as np

    from xlapipe.running.inputs import _random_value
    from xlapipe.running.stored_arrays import stored_array

    shape, dtype = stored_array(leaf.shape, leaf.dtype)
    size = int(np.prod(shape))
    if size < 1 << 20 or not jax.numpy.issubdtype(dtype, np.floating):
        value = _random_value(leaf, [0, number])
    else:
        values = np.random.default_rng([0, number]).standard_normal(1 << 20, np.float32) * 0.02
        value = np.resize(values.astype(dtype), shape)
    # A second moment of Adam's is not negative.
    return np.abs(value) if ".nu" in leaf.path else value


def one(folder: Path) -> dict[str, Any]:
    """Times one executable in this process."""
    import jax
    import numpy as np

    from xlapipe.running.built_executable import built_manifest
    from xlapipe.running.executable import load_executable
    from xlapipe.running.select_devices import select_devices

    (device,) = devices = select_devices(folder, built_manifest(folder))
    stats = {"before": dict(device.memory_stats() or {})}
    executable = load_executable(folder, devices)
    stats["loaded"] = dict(device.memory_stats() or {})
    leaves = {
        leaf.parameter_number: leaf
        for leaf in executable.manifest.arguments
        if leaf.parameter_number is not None
    }
    arrays = {n: executable.place(leaf, _host_value(leaf, n)) for n, leaf in leaves.items()}
    jax.block_until_ready(list(arrays.values()))
    stats["with_inputs"] = dict(device.memory_stats() or {})
    donated = [number for number in sorted(leaves) if leaves[number].donated]

    def call() -> list[Any]:
        """Calls it, and gives donated parameters the outputs of their shape."""
        results = executable.call_numbered(arrays)
        left = list(results)
        for number in donated:
            like = arrays[number]
            same = next(r for r in left if (r.shape, r.dtype) == (like.shape, like.dtype))
            left = [r for r in left if r is not same]
            arrays[number] = same
        return left

    def seconds(count: int, *, waiting: bool) -> list[float]:
        """Of each call, or, without waiting after each, of all of them divided by their number."""
        times, started = [], time.perf_counter()
        for _ in range(count):
            one_started = time.perf_counter()
            others = call()
            if waiting:
                jax.block_until_ready((others, list(arrays.values())))
                times.append(time.perf_counter() - one_started)
        jax.block_until_ready((others, list(arrays.values())))
        return times or [(time.perf_counter() - started) / count]

    with turn():
        started = time.perf_counter()
        (first,) = seconds(1, waiting=True)
        stats["after"] = dict(device.memory_stats() or {})
        (short,) = seconds(1, waiting=True)
        count = int(min(max(_TIMED_SECONDS / short, _LEAST_CALLS), _MOST_CALLS))
        waited = seconds(count, waiting=True)
        rows = [seconds(count, waiting=False)[0] for _ in range(3)]
        whole = time.perf_counter() - started
    finite = all(
        bool(np.isfinite(np.asarray(array).astype(np.float32)).all())
        for array in arrays.values()
        if jax.numpy.issubdtype(array.dtype, np.floating) and array.size < 1 << 16
    )
    fields = ("bytes_in_use", "peak_bytes_in_use")
    return {
        "memory_stats": {k: {f: own.get(f) for f in fields} for k, own in stats.items()},
        "first_call_seconds": first,
        "call_seconds": sorted(waited)[len(waited) // 2],
        "step_seconds": sorted(rows)[1],
        "step_seconds_each": rows,
        "calls": count,
        "turn_seconds": whole,
        "finite": finite,
        "device": device.device_kind,
    }


def build_here(program: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Builds a program, for the attached GPU and tuned, or with a predicted lock as `search` does.

    Returns:
      What the plan needs.
    """
    from xlapipe.choosing.candidate import Candidate, Change
    from xlapipe.choosing.compiles import job_of
    from xlapipe.compiling.make_jobs import CompileOptions
    from xlapipe.compiling.pipeline import build, compile_dump
    from xlapipe.dumps.dump import write_dump

    change = None
    if (policy := program["rematerialise"]) is not None:
        here = str(Path(__file__).parent)
        lines = [line.replace(program["folder_of_lines"], here) for line in policy["lines"]]
        change = Change("", "", {**policy, "lines": lines})
    started = time.perf_counter()
    if program["basis"] == "tuned":
        job = job_of(
            program["workload"], Candidate({}, "attached", change), CompileOptions(use_cache=False)
        )
        results = Path(f"/tmp/tuned_{program['family']}")
        results.mkdir(exist_ok=True)
        cache = {"xla_gpu_per_fusion_autotune_cache_dir": str(results)}
        with turn():
            plan = build(replace(job, options={**job.options, **cache}), folder).dump.plan
    else:
        job = job_of(
            program["workload"], Candidate({}, "h200", change), CompileOptions(lock="predicted")
        )
        compiled = compile_dump(replace(job, serialize=True), None)
        write_dump(folder, compiled.dump.manifest, compiled.files)
        plan = compiled.dump.plan
    totals = plan.totals
    return {
        "build_seconds": time.perf_counter() - started,
        "total_bytes": totals.total_allocation_bytes - totals.thread_local_bytes,
        "temp_bytes": totals.temp_bytes,
    }


def run(program: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Times a program in a process of its own."""
    share = _pool_bytes(program) / _DEVICE_BYTES
    command = [sys.executable, __file__, str(folder), "-", "--one"]
    pool = {"XLA_CLIENT_MEM_FRACTION": f"{share:.3f}"}
    environment = {**os.environ, **pool, "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {_LONGEST_SECONDS} s"}
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _pool_bytes(program: dict[str, Any]) -> float:
    return 1.06 * float(program["pool_bytes"]) + 1.5e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--until", type=float, default=240.0)
    parser.add_argument("--one", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.builds)))
        sys.stdout.flush()
        os._exit(0)
    started = time.monotonic()
    options.builds, options.out = options.builds.absolute(), options.out.absolute()
    os.chdir(Path(__file__).parent)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # of builds
    queue = json.loads((options.builds / "programs.json").read_text(encoding="utf-8"))
    names = ("family", "row", "basis")
    running: dict[Future[dict[str, Any]], dict[str, Any]] = {}

    def left() -> bool:
        return time.monotonic() - started < options.until

    with ThreadPoolExecutor(_AT_ONCE) as pool, options.out.open("a", encoding="utf-8") as out:
        about = provenance({name: version(name) for name in ("jax", "jaxlib")})
        print(json.dumps(about), file=out, flush=True)

        def keep(program: dict[str, Any], result: dict[str, Any]) -> None:
            line = {name: program[name] for name in names} | program.get("built", {}) | result
            line["at_seconds"] = round(time.monotonic() - started, 1)
            print(json.dumps(line), file=out, flush=True)

        def keep_ended(block: bool) -> None:
            done, _ = wait(running, timeout=None if block else 0, return_when=FIRST_COMPLETED)
            for future in done:
                keep(running.pop(future), future.result())

        def start(program: dict[str, Any], folder: Path) -> None:
            while running and (
                len(running) >= _AT_ONCE
                or sum(map(_pool_bytes, [*running.values(), program])) > _POOLS_BYTES
            ):
                keep_ended(block=True)
            running[pool.submit(run, program, folder)] = program

        def built(program: dict[str, Any]) -> Path | None:
            """The folder of the executable; None if it cannot be built, or not in time."""
            folder = options.builds / (program["folder"] or "tuned")
            if not (folder / "manifest.json").exists():
                folder = Path(f"/tmp/built/{program['family']}_{program['row']}_{program['basis']}")
                if not left():
                    return None
                try:
                    program["built"] = build_here(program, folder)
                except Exception as error:  # noqa: BLE001 - recorded; the next program is tried
                    keep(program, {"failed": f"build: {error}"[-1500:]})
                    return None
            return folder

        with ThreadPoolExecutor(_BUILDS_AT_ONCE) as builders:
            ready = [program for program in queue if program["basis"] != "tuned"]
            builds = {builders.submit(built, program): program for program in ready}
            for future in as_completed(builds):
                if (folder := future.result()) is not None and left():
                    start(builds[future], folder)
                keep_ended(block=False)
        while running:
            keep_ended(block=True)
        for program in queue:
            if program["basis"] == "tuned" and (folder := built(program)) is not None:
                start(program, folder)
            keep_ended(block=False)
        while running:
            keep_ended(block=True)


if __name__ == "__main__":
    main()
