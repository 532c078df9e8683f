"""Runs both sides of each GPU comparison, one after another, and prints a table of the timings.

    python tests/bench/gpu/compare.py [COMPARISON…] [--rounds N] [--json FILE]

Needs a GPU, jax with NVIDIA's libraries and torch. `make bench-gpu` runs it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from xlapipe.files.writing import write_files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# The sides of each comparison, which are modules of this folder; this repository's is first.
COMPARISONS: dict[str, tuple[str, ...]] = {
    "qwen3": ("qwen3_jax", "qwen3_torch", "qwen3_torch_tuned"),
    "float8": ("float8_jax", "float8_torch"),
    "resnet": ("resnet_jax", "resnet_torch"),
    "spectral": ("spectral_jax", "spectral_torch"),
    "fsdp": ("fsdp_jax", "fsdp_torch"),
}


def run_side(module: str, limit_seconds: float) -> dict[str, Any]:
    """Runs a side, and returns its last line of output, with an `error` if it failed or timed out.

    Output goes to files instead of pipes: compilers that the side started may outlive it for a
    moment, and would keep a pipe open.

    Args:
      module: of this folder.
      limit_seconds: a side that takes longer is stopped.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / f"{module}.py")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
        try:
            failure = _wait_for(process, limit_seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        log.seek(0)
        lines, logged = out.read().strip().splitlines(), log.read()
    # A line may be incomplete if the side was stopped.
    complete = [line for line in lines if line.startswith("{") and line.endswith("}")]
    result: dict[str, Any] = json.loads(complete[-1]) if complete else {"timings": []}
    if failure or not complete:
        last_line = logged.strip().splitlines()[-1:] if failure.startswith("exit") else []
        result |= {"error": ": ".join([failure or "printed nothing", *last_line]), "log": logged}
    return result


def _wait_for(process: subprocess.Popen[bytes], limit_seconds: float) -> str:
    """Waits for the end of a side; why it failed, or must be stopped, or an empty string."""
    try:
        process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        return f"took more than {limit_seconds:g} s"
    return "" if process.returncode == 0 else f"exit code {process.returncode}"


def merge_rounds(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges one side's rounds: the median of the medians, the extremes of the extremes."""
    timings: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in rounds:
        for timing in result["timings"]:
            timings.setdefault((timing["case"], timing["variant"]), []).append(timing)
    merged = [
        same[0]
        | {
            "median_seconds": median(timing["median_seconds"] for timing in same),
            "least_seconds": min(timing["least_seconds"] for timing in same),
            "most_seconds": max(timing["most_seconds"] for timing in same),
        }
        for same in timings.values()
    ]
    # From any round: one that failed early may not have printed its device.
    about = {
        name: value for result in rounds for name, value in result.items() if name != "timings"
    }
    return about | {"timings": merged}


def rows_of(sides: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Timings by case, each with the ratio of its time to that of our first variant of the case."""
    rows = [
        {"side": name, **timing}
        for name, side in sides.items()
        for timing in side.get("timings", ())
    ]
    our_side, *_ = sides
    our_rows: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["side"] == our_side:
            our_rows.setdefault(row["case"], row)
    for row in rows:
        ours = our_rows.get(row["case"], {})
        row["over_ours"] = row["median_seconds"] / ours["median_seconds"] if ours else None
        row["least_bytes"] = row["least_bytes"] or ours.get("least_bytes")
    order = list(dict.fromkeys(row["case"] for row in rows))
    return sorted(rows, key=lambda row: order.index(row["case"]))


def print_table(title: str, sides: dict[str, dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    about = [f"{name}: {side['framework']}" for name, side in sides.items() if "framework" in side]
    devices = {side["device"] for side in sides.values() if "device" in side}
    table = Table(title=f"{title} on {', '.join(sorted(devices)) or '?'}", title_justify="left")
    table.caption = "; ".join(about)
    for column in ("case", "side", "variant"):
        table.add_column(column)
    for column in ("ms", "fastest", "slowest", "over ours", "least MB", "moved MB", "least TB/s"):
        table.add_column(column, justify="right")
    for row in rows:
        milliseconds = [row[f"{name}_seconds"] * 1e3 for name in ("median", "least", "most")]
        least, moved = row["least_bytes"], row["moved_bytes"]
        table.add_row(
            *(row[name] for name in ("case", "side", "variant")),
            *(f"{value:.4f}" for value in milliseconds),
            f"{row['over_ours']:.2f}×" if row["over_ours"] else "–",
            f"{least / 1e6:.1f}" if least else "–",
            f"{moved / 1e6:.1f}" if moved else "–",
            f"{least / row['median_seconds'] / 1e12:.2f}" if least else "–",
        )
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    if any(row.get("division") for row in rows):
        console.print(division_table(rows))
    for name, side in sides.items():
        if "error" in side:
            console.print(f"{name} failed: {side['error']}", markup=False)


def division_table(rows: list[dict[str, Any]]) -> Table:
    """How the time of a step is divided on the first device, from a profile of a few steps."""
    table = Table(title="Division of a step, ms (profiled)", title_justify="left")
    for column in ("case", "side", "variant"):
        table.add_column(column)
    for column in ("gemms", "all compute", "collectives", "exposed", "hidden", "idle"):
        table.add_column(column, justify="right")
    for row in rows:
        division = row.get("division")
        if not division:
            continue
        collective, exposed = division["collective_seconds"], division["exposed_seconds"]
        table.add_row(
            *(row[name] for name in ("case", "side", "variant")),
            *(f"{division[f'{name}_seconds'] * 1e3:.3f}" for name in ("gemm", "compute")),
            f"{collective * 1e3:.3f}",
            f"{exposed * 1e3:.3f}",
            f"{1 - exposed / collective:.0%}" if collective else "–",
            f"{division['idle_seconds'] * 1e3:.3f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparisons", nargs="*", metavar="COMPARISON", help=", ".join(COMPARISONS))
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side, in alternation")
    parser.add_argument(
        "--limit", type=float, default=900, metavar="SECONDS", help="time limit for each run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    options = parser.parse_args(arguments)
    names = options.comparisons or list(COMPARISONS)
    unknown = [name for name in names if name not in COMPARISONS]
    if unknown or options.rounds < 1:
        parser.error(f"expected comparisons of {', '.join(COMPARISONS)} and 1 round or more")
    written: dict[str, Any] = {}
    for name in names:
        rounds = [
            {side: run_side(side, options.limit) for side in COMPARISONS[name]}
            for _ in range(options.rounds)
        ]
        sides = {
            side: merge_rounds([results[side] for results in rounds]) for side in COMPARISONS[name]
        }
        rows = rows_of(sides)
        print_table(name, sides, rows)
        written[name] = {"rounds": rounds, "rows": rows}
        if options.json is not None:
            write_files({options.json: (json.dumps(written, indent=1) + "\n").encode()})
    failed = any(
        "error" in result
        for comparison in written.values()
        for results in comparison["rounds"]
        for result in results.values()
    )
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
