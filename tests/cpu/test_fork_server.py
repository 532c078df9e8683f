"""Compiling children that are forked from a server: the same dumps, and the same endings."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from xlapipe.compiling import child_process
from xlapipe.compiling.fork_server import ForkServers
from xlapipe.compiling.job import Job
from xlapipe.compiling.pipeline import compile_dump
from xlapipe.errors import CompileError, WorkloadError
from xlapipe.registry import find_workload
from xlapipe.targets.catalogue import target_named

HERE = Path(__file__).parent


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ForkServers:
    """Servers that no other test has used: the first compile starts its child directly."""
    servers = ForkServers()
    monkeypatch.setattr(child_process, "_SERVERS", servers)
    monkeypatch.chdir(HERE)
    return servers


def files_of(reference: str) -> Mapping[str, bytes]:
    job = Job(reference=find_workload(reference), target=target_named("h200"))
    return compile_dump(job, None).files


def test_a_forked_child_writes_the_same_dump(servers: ForkServers) -> None:
    direct = files_of("small_step:small_step")
    assert servers._server is None
    forked = files_of("small_step:small_step")
    assert servers._server is not None
    assert forked == direct
    os.kill(servers._server._process.pid, signal.SIGKILL)
    servers._server._process.wait()
    assert files_of("small_step:small_step") == direct, "without the server"
    assert servers._server is None


def test_endings_of_forked_children(servers: ForkServers) -> None:
    environment = child_process._environment(
        Job(reference=find_workload("broken:good"), target=target_named("h200")), HERE
    )
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
    assert servers._server is not None


def test_a_child_of_another_environment_is_started_directly(servers: ForkServers) -> None:
    environment = {"PATH": "/bin", "XLA_FLAGS": "--a=1"}
    assert servers.for_environment(environment) is None
    seeded = environment | {"PYTHONHASHSEED": "7"}
    assert servers.for_environment(seeded) is None, "the second compile, of another environment"
    assert servers._server is None


def test_a_compile_on_the_attached_gpu_has_the_cpu_too() -> None:
    """Lowering asks for the CPU's device, and fails where only the GPU's platform is allowed."""
    attached = Job(reference=find_workload("broken:good"), target=None)
    assert child_process._environment(attached, HERE)["JAX_PLATFORMS"] == "cuda,cpu"
