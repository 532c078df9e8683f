"""Executables for several devices: placing inputs and gathering outputs, in one process or two.

No GPU is attached: instead of loading an executable, run_on_cpus.py compiles its program for CPU
devices, and attached GPUs are simulated.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.devices.environment.machine import Machine
from xlapipe.dump.dump import open_dump, read_manifest
from xlapipe.dump.manifest import MANIFEST, Manifest
from xlapipe.errors import DumpError, TargetError
from xlapipe.files.typed_data import typed
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, leaf_json
from xlapipe.plans.thunks import Thunk
from xlapipe.run import executable
from xlapipe.run import executable as selecting
from xlapipe.run import run as running
from xlapipe.run.executable import LoadedExecutable

pytestmark = pytest.mark.jax

ON_CPUS = [sys.executable, str(STEPS / "run_on_cpus.py")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "sharded"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        assert main(["build", "small_sharded:sharded", "--out", str(folder), "--json"]) == 0
    return folder


def started(*arguments: str, **environ: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*ON_CPUS, *arguments],
        env={**os.environ, "PYTHONWARNINGS": "default", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_command(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONWARNINGS": "default", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def in_two_processes(*arguments: Sequence[str]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of two processes, with the variables that mpirun sets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = [
        started(
            *own,
            "--distributed",
            OMPI_MCA_orte_hnp_uri="1234.0;tcp://127.0.0.1:1",
            OMPI_COMM_WORLD_SIZE="2",
            OMPI_COMM_WORLD_RANK=str(number),
            OMPI_COMM_WORLD_LOCAL_RANK=str(number),
            JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
        )
        for number, own in enumerate(arguments)
    ]
    printed = [process.communicate(timeout=120) for process in processes]
    return [(p.returncode, *texts) for p, texts in zip(processes, printed, strict=True)]


def test_the_manifest_holds_the_sharding_of_every_leaf(built: Path) -> None:
    manifest = read_manifest(built)
    assert manifest.mesh == {"data": 2}
    assert [leaf.spec for leaf in manifest.arguments] == [("data",), ("data",)]
    # Chosen by XLA: the workload has no out_specs.
    assert [leaf.spec for leaf in manifest.outputs] == [("data",), ("data",), ()]
    assert [leaf.size_bytes for leaf in manifest.outputs] == [512, 256, 4]


@pytest.mark.slow
def test_two_processes_give_the_outputs_of_one(built: Path) -> None:
    arguments = ["run", str(built), "--seed", "3", "--repeat", "2", "--json"]
    alone = run_command([*ON_CPUS, *arguments], JAX_NUM_CPU_DEVICES="2")
    first, second = in_two_processes(arguments, arguments)
    assert (alone.returncode, first[0], second[0]) == (0, 0, 0), alone.stderr + first[2] + second[2]
    assert "sha256" not in second[1]
    one, two = (json.loads(out.splitlines()[-1]) for out in (alone.stdout, first[1]))
    assert one["outputs"] == two["outputs"]
    assert len({output["sha256"] for output in one["outputs"]}) == 3
    assert (one["processes"], two["processes"]) == (1, 2)
    assert [(run["process"], run["device"]) for run in one["devices"]] == [(0, 0), (0, 1)]
    assert [(run["process"], run["device"]) for run in two["devices"]] == [(0, 0), (1, 1)]
    assert len(two["call_seconds"]) == 2


def test_a_step_of_several_devices_is_loaded_and_called_from_python(built: Path) -> None:
    """Through jax: whole arrays are split over the devices, and outputs are arguments again."""
    script = [sys.executable, str(STEPS / "load_on_cpus.py"), str(built)]
    done = run_command(script, JAX_NUM_CPU_DEVICES="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["shard", "x", "out[0]", "out[1]", "out[2]"]


@pytest.mark.slow
def test_processes_that_run_different_programs(built: Path) -> None:
    runs = in_two_processes(*(["run", str(built), "--seed", str(n)] for n in (1, 2)))
    for code, _, error in runs:
        assert code == 2
        assert "with seed 1, process 1 runs" in error
        assert "fix: give every process the same command" in error


def test_without_a_launcher(built: Path) -> None:
    done = run_command([*ON_CPUS, "run", str(built), "--distributed"])
    assert done.returncode == 2
    assert "fix: start one process per GPU by srun or mpirun" in done.stderr


def test_digests_are_of_whole_arrays_in_row_major_order() -> None:
    import hashlib

    for value in (np.arange(12, dtype=np.int16).reshape(3, 4).T, np.float32(7), np.zeros((0, 2))):
        whole = running._whole_on_host(jax.numpy.asarray(value))
        expected = hashlib.sha256(np.ascontiguousarray(whole).tobytes()).hexdigest()
        assert running._digest(whole) == expected


# Simulated GPUs.


@dataclass
class Gpu:
    """The attributes of a jax device that are read, of one that is not attached."""

    id: int
    process_index: int = 0
    device_kind: str = "NVIDIA H200"
    compute_capability: str = "9.0"
    platform: str = "gpu"


def gpus(count: int) -> list[Any]:
    return [Gpu(id=number) for number in range(count)]


@pytest.fixture
def nccl_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "library", lambda machine, name: Path(name))


def selected(
    built: Path, monkeypatch: pytest.MonkeyPatch, attached: list[Any], hosts: int = 1
) -> tuple[Any, ...]:
    monkeypatch.setattr(jax, "devices", lambda platform: attached)
    return selecting.select_devices(built, read_manifest(built), hosts)


@pytest.mark.usefixtures("nccl_installed")
def test_the_first_gpus_are_selected(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [gpu.id for gpu in selected(built, monkeypatch, gpus(4))] == [0, 1]


@pytest.mark.usefixtures("nccl_installed")
def test_fewer_gpus_than_the_mesh_has(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    expected = r"mesh {'data': 2}, 2 GPUs; attached: 1 \(CUDA_VISIBLE_DEVICES=1\); fix: run it"
    with pytest.raises(TargetError, match=expected):
        selected(built, monkeypatch, gpus(1))


@pytest.mark.usefixtures("nccl_installed")
def test_more_processes_than_the_mesh_has(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(TargetError, match="4 processes have 4 GPUs; fix: start 2 processes"):
        selected(built, monkeypatch, gpus(4))


@pytest.mark.usefixtures("nccl_installed")
def test_a_gpu_of_another_kind_among_them(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attached = gpus(2)
    attached[1].device_kind = "NVIDIA H100 80GB HBM3"
    with pytest.raises(TargetError, match="GPU 1 is NVIDIA H100 80GB HBM3"):
        selected(built, monkeypatch, attached)


@pytest.mark.usefixtures("nccl_installed")
def test_more_hosts_than_the_topology_has(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = r"topology 1x2 \(hosts: 1\), found hosts: 2; fix: build it with --topology 2x1"
    with pytest.raises(TargetError, match=expected):
        selected(built, monkeypatch, gpus(2), hosts=2)


def test_missing_nccl(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "library", lambda machine, name: None)
    with pytest.raises(TargetError, match=r"through libnccl.so.2, .*; fix: .*nvidia-nccl-cu13"):
        selected(built, monkeypatch, gpus(2))


def test_xlas_own_collective_kernel_needs_one_process(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = open_dump(built)
    with_kernel = replace(dump.plan, thunks=(Thunk("kCollectiveKernel", 0),))
    monkeypatch.setattr(running, "open_dump", lambda folder: replace(dump, plan=with_kernel))
    with pytest.raises(TargetError, match="within one process only; fix: run it without --dist"):
        running.run(built, seed=0, repeat=1, distributed=True)


def test_a_manifest_without_the_sharding_of_a_leaf(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(built)
    leaf = ArgumentLeaf("x", (8, 16), "float32", 256, False, 0)
    bare = replace(manifest, arguments=(leaf,), outputs=())
    monkeypatch.setattr(executable, "mesh_over", lambda axes, devices: None)
    loaded = LoadedExecutable(built, bare, tuple(gpus(2)), None)
    with pytest.raises(DumpError, match="does not hold the sharding of x over the mesh"):
        loaded.place(leaf, np.zeros(leaf.shape, np.float32))


@pytest.mark.parametrize("spec", [[3], "data", [["data", 1]], [{"a": 1}]])
def test_invalid_specs_are_refused(spec: Any, built: Path) -> None:
    data = json.loads((built / MANIFEST).read_text())
    data["arguments"][0]["spec"] = spec
    with pytest.raises(DumpError, match="make the dump again"):
        Manifest.from_json(data, where=MANIFEST)


@pytest.mark.parametrize(
    "leaf",
    [
        ArgumentLeaf("x", (4, 8), "float32", 64, True, 0, ("data", None, ("a", "b"))),
        OutputLeaf("out", (4,), "int32", 8, 0, ()),
        OutputLeaf("out", (4,), "int32", 16, 0),
    ],
)
def test_leaves_round_trip_through_json(leaf: Any) -> None:
    data = json.loads(json.dumps(leaf_json(leaf)))
    assert typed(type(leaf), data) == leaf
    assert ("spec" in data) == (leaf.spec is not None)
