"""Compiling children that are forked from a server: the same dumps, and the same endings."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.folders import STEPS
from xlapipe.compile import child_process
from xlapipe.compile.fork_server import ServerOfEnvironment
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.user_environment import CPU_DEVICES
from xlapipe.compile.xla_patches.stand_ins import PLUGINS_VARIABLE
from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.errors import CompileError, WorkloadError
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ServerOfEnvironment:
    """One that no other test has used: the first compile starts its child directly."""
    servers = ServerOfEnvironment()
    monkeypatch.setattr(child_process, "_SERVER", servers)
    monkeypatch.chdir(STEPS)
    return servers


def job_of(reference: str) -> Job:
    return Job(reference=find_workload(reference), target=target_named("h200"))


environment_of = child_process._environment


def files_of(reference: str) -> Mapping[str, bytes]:
    return compile_dump(job_of(reference), None).files


@pytest.mark.slow
def test_a_forked_child_writes_the_same_dump(servers: ServerOfEnvironment) -> None:
    direct = files_of("small_step:small_step")
    assert servers._server is None
    forked = files_of("small_step:small_step")
    server = servers._server
    assert server is not None
    assert forked == direct
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    assert files_of("small_step:small_step") == direct, "without the server"
    assert servers._server is None


@pytest.mark.slow
def test_one_server_forks_children_with_any_number_of_cpu_devices(
    servers: ServerOfEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh may be made of the CPU's devices, whose number jax reads when it is imported."""
    started = set()
    for count in ("2", "2", "5", None):
        if count is None:
            monkeypatch.delenv(CPU_DEVICES)
        else:
            monkeypatch.setenv(CPU_DEVICES, count)
        with pytest.raises(WorkloadError, match=f"found CPU devices: {count or 1}$"):
            files_of("broken:counts_cpu_devices")
        started.add(servers._server)
    (server,) = started - {None}
    assert server is not None
    monkeypatch.setenv(CPU_DEVICES, "many")
    assert not server.serves(environment_of(job_of("broken:good"))), "jax refuses it at its import"


@pytest.mark.slow
def test_a_server_is_replaced_when_none_of_its_children_runs(
    servers: ServerOfEnvironment, tmp_path: Path
) -> None:
    job, path = replace(job_of("small_step:small_step"), scratch=tmp_path), tmp_path / "job.json"
    path.write_bytes(job.to_bytes())
    first, second = (environment_of(job) | {"PYTHONHASHSEED": seed} for seed in "12")
    assert servers.get(first) is None
    server = servers.get(first)
    assert server is not None and servers.get(first) is server
    with (tmp_path / "log").open("wb") as log:
        child = server.start(path, log=log, folder=STEPS, environment=first)
    assert [servers.get(second) for _ in range(3)] == [None] * 3, "its child runs"
    assert child.wait(60) == 0
    assert "error" not in json.loads((tmp_path / "result.json").read_text())
    other = servers.get(second)
    assert other is not None and other is not server
    assert server._process.poll() is not None
    servers.stop()
    assert other._process.poll() is not None


@pytest.mark.slow
def test_a_process_with_threads_is_not_forked(
    servers: ServerOfEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another thread holds would never be released in the child."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):
        assert files_of("small_step:small_step")
    assert servers._server is None, "the server refused, and the child was started directly"


def test_endings_of_forked_children(servers: ServerOfEnvironment) -> None:
    environment = environment_of(job_of("broken:good"))
    assert servers.get(environment) is None
    assert servers.get(environment) is not None
    for workload, ending in {"crashes": "SIGABRT", "exits": "code 3"}.items():
        with pytest.raises(CompileError, match=ending):
            files_of(f"broken:{workload}")


@pytest.mark.slow
def test_variables_that_imports_set_are_in_forked_children(
    servers: ServerOfEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA finds the library of Mosaic GPU's kernels by such a variable."""
    for name in [name for name in os.environ if name.startswith("MOSAIC_GPU_")]:
        monkeypatch.delenv(name)
    for _ in range(2):
        with pytest.raises(WorkloadError, match="found the library of Mosaic GPU"):
            files_of("broken:finds_mosaic_library")
    assert servers._server is not None


def test_a_child_of_another_environment_is_started_directly(servers: ServerOfEnvironment) -> None:
    environment = {"PATH": "/bin", "XLA_FLAGS": "--a=1"}
    assert servers.get(environment) is None
    seeded = environment | {"PYTHONHASHSEED": "7"}
    assert servers.get(seeded) is None, "the second compile, of another environment"
    assert servers._server is None


def test_a_compile_on_the_attached_gpu_has_the_cpu_too() -> None:
    """Lowering asks for the CPU's device, and fails where only the GPU's platform is allowed."""
    attached = Job(reference=find_workload("broken:good"), target=None)
    assert environment_of(attached)["JAX_PLATFORMS"] == "cuda,cpu"


def test_a_compile_on_an_attached_amd_gpu_tunes_with_its_own_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where AMD's driver lists a GPU, and not where it lists a CPU alone, whose id is 0."""
    node = tmp_path / "1" / "gpu_id"
    node.parent.mkdir()
    node.write_text("0\n")
    machine = replace(Machine.local(), devices=tmp_path, amd_nodes=tmp_path)
    monkeypatch.setattr(Machine, "local", lambda: machine)
    attached = Job(reference=find_workload("broken:good"), target=None, tune=True)
    assert environment_of(attached)["JAX_PLATFORMS"] == "cuda,cpu"
    node.write_text("51140\n")
    environment = environment_of(attached)
    assert environment["JAX_PLATFORMS"] == "rocm,cpu"
    assert "--xla_gpu_dump_autotune_results_to=" in environment["XLA_FLAGS"]
    assert PLUGINS_VARIABLE not in environment
    absent = Job(reference=find_workload("broken:good"), target=target_named("mi300x"))
    assert environment_of(absent)[PLUGINS_VARIABLE] == "jax_plugins.xla_rocm7,jax_rocm7_plugin"
