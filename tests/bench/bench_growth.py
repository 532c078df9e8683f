"""How the CPU time of a dump, and of reading it, grows with instructions and with leaves.

Two programs: a chain of matrix products, and an update of many leaves of a tree. The largest have
50,000 and 100,000 instructions after optimisation: XLA's own compile of the chain grows with more
than the square of its length, and jax alone did not finish 100,000. CPU time is user and system
time of all processes.
XLAPIPE_BENCH_LARGEST=21000 leaves out the programs with more instructions.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import read_file
from xlapipe.dump.readers.proto_reader import read_module

HERE = Path(__file__).resolve().parent
XLAPIPE = [sys.executable, "-m", "xlapipe.cli"]
# Instructions after optimisation for each layer and for each leaf.
INSTRUCTIONS_EACH = {"chain": 7, "leaves": 9}
INSTRUCTIONS = (7_000, 21_000, 50_000, 100_000)
LARGEST_OF = {"chain": 50_000, "leaves": 100_000}
LARGEST = int(os.environ.get("XLAPIPE_BENCH_LARGEST", INSTRUCTIONS[-1]))
READING = (["show"], ["check"], ["diff"], ["report", "--out", "report.html"])


def cpu_seconds(*command: str | Path, folder: Path) -> float:
    """User and system seconds of a process and of those that it started."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPATH"] = os.pathsep.join((str(HERE), str(HERE.parents[1])))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("program", sorted(INSTRUCTIONS_EACH))
def test_time_grows_linearly(benchmark: Any, program: str, tmp_path: Path) -> None:
    config = tmp_path / "h200.txtpb"
    config.write_text(target_named("h200").config_text)
    titles = ("bare", "dump", "ratio", *(" ".join(command[:2]) for command in READING))
    print(f"\n{program}, CPU seconds\n{'instructions':>12}", *(f"{title:>12}" for title in titles))

    def measure(count: int) -> None:
        name, out = f"growing_programs:{program}_{count}", tmp_path / "out"
        bare: list[float] = []
        for turn in range(2):  # the bare compile comes before and after xlapipe's
            command = (sys.executable, HERE / "bare.py", config, tmp_path / "bare", name)
            bare.append(cpu_seconds(*command, folder=tmp_path))
            shutil.rmtree(tmp_path / "bare")
            if turn == 0:
                dump = cpu_seconds(*XLAPIPE, "dump", name, "--out", out, folder=tmp_path)
        (manifest,) = out.glob("*/*/manifest.json")
        folder = manifest.parent
        reading = [
            cpu_seconds(
                *XLAPIPE,
                command[0],
                folder,
                *([folder] if command == ["diff"] else command[1:]),
                folder=tmp_path,
            )
            for command in READING
        ]
        module = read_module(read_file(folder, "after_optimizations.hlo.pb"), where=name)
        instructions = sum(1 for _ in module.instructions())
        figures = (sum(bare) / 2, dump, 2 * dump / sum(bare), *reading)
        benchmark.extra_info[f"{instructions} instructions"] = dict(
            zip(titles, figures, strict=True)
        )
        print(f"{instructions:>12,}", *(f"{item:>12.2f}" for item in figures), flush=True)
        shutil.rmtree(out)

    def all_sizes() -> None:
        for instructions in INSTRUCTIONS:
            if instructions <= min(LARGEST, LARGEST_OF[program]):
                measure(instructions // INSTRUCTIONS_EACH[program])

    benchmark.pedantic(all_sizes, rounds=1)
