"""`xlapipe fit` for Qwen3-32B's training step: compile time by depth, and 12 combinations.

Takes minutes; `make bench BENCH_ARGS='-k fit -p no:xdist'` runs only these.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# Long enough for a busy machine.
pytestmark = pytest.mark.timeout(1800)

HERE = Path(__file__).resolve().parent
STAGES = ("load", "lower", "compile", "read")


def fit(*arguments: str) -> tuple[float, float, list[dict[str, Any]]]:
    """Wall seconds of the process, CPU seconds of it and its children, and its rows."""
    command = [sys.executable, "-m", "xlapipe.cli", "fit", "qwen3-train(size='32b')", "--json"]
    started, before = time.perf_counter(), cpu_seconds()
    done = subprocess.run(
        [*command, "--topology", "8x8", *arguments], cwd=HERE, capture_output=True, check=False
    )
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return seconds, cpu_seconds() - before, rows


def cpu_seconds() -> float:
    """CPU seconds of ended child processes; on a busy machine more reliable than wall time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def load() -> str:
    return f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"


def test_compile_time_is_flat_in_depth(benchmark: Any) -> None:
    def all_depths() -> None:
        for layers in (8, 16, 32, 64):
            before = load()
            _, used, (row,) = fit("--vary", f"layers={layers}")
            seconds = row["seconds"]
            benchmark.extra_info[f"{layers} layers"] = {"cpu": used, **seconds}
            print(
                f"{layers:>2} layers: CPU {used:.1f} s; wall: lower {seconds['lower']:.1f} s, "
                f"compile {seconds['compile']:.1f} s ({before}); {row['total_bytes']:,} B"
            )

    print("\nqwen3-train 32b on 8x8, one process each")
    benchmark.pedantic(all_depths, rounds=1)


def test_twelve_combinations(benchmark: Any) -> None:
    before = load()
    arguments = ("--vary", "batch=8,64,128,256", "--vary", "seq=2048,8192,32768")
    wall, used, rows = benchmark.pedantic(lambda: fit(*arguments), rounds=1)
    assert len(rows) == 12
    children = sum(row["seconds"]["all"] for row in rows)
    benchmark.extra_info.update({"wall": wall, "children": children, "cpu": used})
    print(f"\nfit of 12 combinations: {wall:.1f} s, CPU {used:.1f} s ({before}, then {load()})")
    print(f"  {children:.1f} s in the children:")
    for stage in STAGES:
        spent = sum(row["seconds"][stage] for row in rows)
        print(f"  {stage}: {spent:.1f} s, {spent / children:.0%}")
    for row in rows:
        print(f"  {row['values']}: {row['total_bytes']:,} B, fits {row['fits']}")
