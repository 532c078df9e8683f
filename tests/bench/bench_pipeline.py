"""Speed of xlapipe's commands, as ratios within one run; `make bench` runs this, `make test` not.

Each figure is the time of a whole process. The compared sides alternate.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from xlapipe.devices.targets.catalogue import target_named

HERE = Path(__file__).resolve().parent
XLAPIPE = [sys.executable, "-m", "xlapipe.cli"]
TEXTS = ("buffer-assignment.txt", "buffer-assignment-values.txt", "live-range.txt")


def run(*command: str | Path, code: int = 0) -> None:
    """Runs a process in this folder, and checks its exit code."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        list(map(str, command)), cwd=HERE, env=environment, capture_output=True, check=False
    )
    assert done.returncode == code, done.stderr.decode()[-2000:]


def in_turns(rounds: int, *sides: Callable[[], None]) -> list[float]:
    """Median seconds of each side; the sides alternate, so that noise affects all of them."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, taken in zip(sides, seconds, strict=True):
            started = time.perf_counter()
            side()
            taken.append(time.perf_counter() - started)
    return [median(taken) for taken in seconds]


def test_dump_against_a_bare_compile(benchmark: Any, tmp_path: Path) -> None:
    config = tmp_path / "h200.txtpb"
    config.write_text(target_named("h200").config_text)

    def ours() -> None:
        shutil.rmtree(tmp_path / "ours", ignore_errors=True)
        run(*XLAPIPE, "dump", "programs:decode_28", "--out", tmp_path / "ours")

    def bare() -> None:
        shutil.rmtree(tmp_path / "bare", ignore_errors=True)
        run(sys.executable, "bare.py", config, tmp_path / "bare")

    medians: list[float] = []
    benchmark.pedantic(lambda: medians.extend(in_turns(5, ours, bare)), rounds=1)
    report(benchmark, "xlapipe dump, 28-layer decode", "a bare compile", *medians, goal=1.25)


def test_show_from_text(benchmark: Any, tmp_path: Path) -> None:
    run(*XLAPIPE, "dump", "programs:decode_28", "--out", tmp_path / "out")
    (manifest,) = (tmp_path / "out").glob("*/*/manifest.json")
    for name in (*TEXTS, "after_optimizations.txt", "thunk_sequence.txt"):
        for path in manifest.parent.glob(f"{name}*"):
            shutil.copy(path, tmp_path)
    (text,) = tmp_path.glob("buffer-assignment.txt*")
    medians: list[float] = []
    benchmark.pedantic(
        lambda: medians.extend(in_turns(5, lambda: run(*XLAPIPE, "show", "--json", text))), rounds=1
    )
    benchmark.extra_info["seconds"] = medians[0]
    print(f"\nxlapipe show --json from text, 28 layers: {medians[0]:.3f} s (goal: at most 1 s)")


def report(
    benchmark: Any, ours_name: str, other_name: str, ours: float, other: float, *, goal: float
) -> None:
    """Prints both sides and their ratio, and adds them to the benchmark's record."""
    ratio = ours / other
    benchmark.extra_info.update({"ours": ours, "other": other, "ratio": ratio, "goal": goal})
    print(
        f"\n{ours_name}: {ours:.3f} s; {other_name}: {other:.3f} s; ratio {ratio:.2f} "
        f"(goal: at most {goal})"
    )
