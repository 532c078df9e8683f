"""`--scheduler`: compiles on a local Dask cluster of two workers, one of which is killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from xlapipe.cli import main

pytestmark = pytest.mark.jax

# A step that leaves a file each time that it is traced, so that compiles can be counted.
STEP = """
import os
from pathlib import Path
import jax, jax.numpy as jnp
from xlapipe import Workload

def step(rows: int = 8) -> Workload:
    Path("marks", f"{rows}.{os.getpid()}").write_text(os.environ.get("XDG_CACHE_HOME", ""))
    x = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    return Workload(name=f"marked-{rows}", fn=lambda x: x.sum(axis=1), args=(x,))

def train(rows: int = 8) -> Workload:
    args = step(rows).args
    loss = lambda x: jnp.mean(jnp.tanh(jnp.tanh(x @ x.T) @ x) ** 2)
    return Workload(name=f"trained-{rows}", fn=jax.grad(loss), args=args)
"""
SIZES = (8, 16, 24, 32, 40, 48)

needs_dask = pytest.mark.skipif(
    find_spec("distributed") is None,
    reason="Dask is not installed: make test-cluster installs it",
)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "marked.py").write_text(STEP)
    (tmp_path / "marks").mkdir()
    return tmp_path


@pytest.fixture
def cluster(project: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """Address of a scheduler, and its two workers, which nothing restarts.

    Each starts in a folder, and has a cache, that nothing else uses.
    """
    with ExitStack() as stack:

        def start(module: str, *arguments: str, folder: str) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments]
            own = project / folder
            own.mkdir()
            environment = {**os.environ, "XDG_CACHE_HOME": str(own / "cache")}
            with (project / "cluster.log").open("ab") as log:
                process = subprocess.Popen(
                    command, cwd=own, env=environment, stdout=log, stderr=log
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        file = project / "scheduler.json"
        start(
            "dask_scheduler",
            *("--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
            *("--scheduler-file", str(file)),
            folder="scheduler",
        )
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
        yield (
            address,
            [
                start("dask_worker", address, *options, folder=f"worker{number}")
                for number in range(2)
            ],
        )


def compiles(project: Path) -> list[int]:
    """The sizes that were traced, one for each time."""
    return [int(path.name.partition(".")[0]) for path in (project / "marks").iterdir()]


@needs_dask
@pytest.mark.slow
def test_a_lost_worker_costs_only_its_own_compile(
    project: Path, cluster: tuple[str, list["subprocess.Popen[bytes]"]]
) -> None:
    address, workers = cluster
    sizes = ",".join(map(str, SIZES))
    command = [sys.executable, "-m", "xlapipe.cli", "fit", "marked:step", "--vary", f"rows={sizes}"]
    command += ["--scheduler", address, "--json"]
    fit = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Each worker compiles one at a time: of three that were begun, one has ended.
    wait_until(lambda: len(compiles(project)) >= 3 or fit.poll() is not None)
    workers[0].kill()
    out, error = fit.communicate(timeout=120)
    assert fit.returncode == 0, error.decode()
    rows = json.loads(out)["rows"]
    assert [row["values"]["rows"] for row in rows] == list(SIZES)
    assert all(row["fits"] for row in rows)
    done = compiles(project)
    assert set(done) == set(SIZES)
    assert len(done) <= len(SIZES) + 1
    assert workers[1].poll() is None


def run(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "xlapipe.cli", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_dask
@pytest.mark.slow
def test_results_of_all_commands_are_with_the_caller_alone(
    project: Path, cluster: tuple[str, list["subprocess.Popen[bytes]"]]
) -> None:
    address, _ = cluster
    workloads = [f"marked:step(rows={rows})" for rows in SIZES[:4]]
    run(project, "dump", *workloads, "--scheduler", address, "--out", "dumps")
    assert sorted(compiles(project)) == sorted(SIZES[:4])
    assert {path.name for path in (project / "dumps").iterdir()} == {
        f"marked-{rows}-rows={rows}" for rows in SIZES[:4]
    }
    for number in range(2):
        assert not list((project / f"worker{number}").rglob("manifest.json"))


@needs_dask
@pytest.mark.slow
def test_choose_compiles_all_but_the_recorded_step_on_the_workers(
    project: Path, cluster: tuple[str, list["subprocess.Popen[bytes]"]]
) -> None:
    address, _ = cluster
    options = ("--vary", "rows=1024,512", "--remat", "--compiles", "6", "--scheduler", address)
    figures = json.loads(run(project, "choose", "marked:train", *options, "--json"))
    rows = figures["rows"]
    assert len(rows) == 6 and figures["failed"] == []
    caches = [path.read_text() for path in (project / "marks").iterdir()]
    on_workers = [cache for cache in caches if Path(cache).parent.parent == project]
    assert sum(row["change"] is None for row in rows) == 2
    assert len(on_workers) == len(caches) - 2 == 4


@pytest.mark.parametrize(
    "command", [["fit", "qwen3-decode"], ["dump", "qwen3-decode"], ["choose", "qwen3-decode"]]
)
def test_without_dask_the_option_is_one_error(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main([*command, "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "pip install 'xlapipe[cluster]'" in capsys.readouterr().err
