"""Compiling children that are forked from a server: the same dumps, and the same endings."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.folders import STEPS
from xlapipe.compile import child_process
from xlapipe.compile.fork_server import ForkServer, ForkServers
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.user_environment import CPU_DEVICES
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.errors import CompileError, WorkloadError
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ForkServers:
    """Servers that no other test has used: the first compile starts its child directly."""
    servers = ForkServers()
    monkeypatch.setattr(child_process, "_SERVERS", servers)
    monkeypatch.chdir(STEPS)
    return servers


def job_of(reference: str) -> Job:
    return Job(reference=find_workload(reference), target=target_named("h200"))


def environment_of(job: Job) -> dict[str, str]:
    return child_process._environment(job, STEPS)


def files_of(reference: str) -> Mapping[str, bytes]:
    return compile_dump(job_of(reference), None).files


def test_a_forked_child_writes_the_same_dump(servers: ForkServers) -> None:
    direct = files_of("small_step:small_step")
    assert servers._servers == []
    forked = files_of("small_step:small_step")
    (server,) = servers._servers
    assert forked == direct
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    assert files_of("small_step:small_step") == direct, "without the server"
    assert servers._servers == []


def test_one_server_forks_children_with_any_number_of_cpu_devices(
    servers: ForkServers, monkeypatch: pytest.MonkeyPatch
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
        started |= set(servers._servers)
    (server,) = started
    monkeypatch.setenv(CPU_DEVICES, "many")
    assert not server.serves(environment_of(job_of("broken:good"))), "jax refuses it at its import"


def test_each_environment_has_its_server_and_the_last_two_are_kept(
    servers: ForkServers, tmp_path: Path
) -> None:
    """A child of the server that is stopped for another runs to its end."""
    job, request = job_of("small_step:small_step"), tmp_path / "request.json"
    request.write_bytes(msgspec.json.encode(child_process._request(job, tmp_path)))
    first, second, third = (environment_of(job) | {"PYTHONHASHSEED": seed} for seed in "123")

    def server_for(environment: dict[str, str]) -> ForkServer:
        assert servers.for_environment(environment) is None
        server = servers.for_environment(environment)
        assert server is not None
        return server

    kept, stopped = server_for(first), server_for(second)
    with (tmp_path / "log").open("wb") as log:
        child = stopped.start(request, log=log, folder=STEPS, environment=second)
    assert servers.for_environment(first) is kept, "used last"
    last = server_for(third)
    assert servers._servers == [kept, last]
    assert stopped._process.poll() is not None
    assert servers.for_environment(second) is None
    assert child.wait(60) == 0
    assert "error" not in json.loads((tmp_path / "result.json").read_text())
    servers.discard()


def test_endings_of_forked_children(servers: ForkServers) -> None:
    environment = environment_of(job_of("broken:good"))
    assert servers.for_environment(environment) is None
    assert servers.for_environment(environment) is not None
    for workload, ending in {"crashes": "SIGABRT", "exits": "code 3"}.items():
        with pytest.raises(CompileError, match=ending):
            files_of(f"broken:{workload}")


def test_variables_that_imports_set_are_in_forked_children(
    servers: ForkServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA finds the library of Mosaic GPU's kernels by such a variable."""
    for name in [name for name in os.environ if name.startswith("MOSAIC_GPU_")]:
        monkeypatch.delenv(name)
    for _ in range(2):
        with pytest.raises(WorkloadError, match="found the library of Mosaic GPU"):
            files_of("broken:finds_mosaic_library")
    assert len(servers._servers) == 1


def test_a_child_of_another_environment_is_started_directly(servers: ForkServers) -> None:
    environment = {"PATH": "/bin", "XLA_FLAGS": "--a=1"}
    assert servers.for_environment(environment) is None
    seeded = environment | {"PYTHONHASHSEED": "7"}
    assert servers.for_environment(seeded) is None, "the second compile, of another environment"
    assert servers._servers == []


def test_a_compile_on_the_attached_gpu_has_the_cpu_too() -> None:
    """Lowering asks for the CPU's device, and fails where only the GPU's platform is allowed."""
    attached = Job(reference=find_workload("broken:good"), target=None)
    assert child_process._environment(attached, STEPS)["JAX_PLATFORMS"] == "cuda,cpu"
