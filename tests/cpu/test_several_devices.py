"""Executables for several devices: placed and put together by plain data, in 1 process or more.

A GPU is attached to none of these machines: programs are compiled for CPU devices in place of
loading (run_on_cpus.py), and attached GPUs are made up.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from xlapipe.cli import main
from xlapipe.dumps.dump import read_manifest
from xlapipe.dumps.manifest import MANIFEST, Manifest
from xlapipe.environment.doctor import Check
from xlapipe.errors import DumpError, TargetError
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf
from xlapipe.plan.thunks import Thunk
from xlapipe.running import executable
from xlapipe.running import run as running
from xlapipe.running import select_devices as attached
from xlapipe.running.executable import LoadedExecutable
from xlapipe.running.rendezvous import Member

HERE = Path(__file__).resolve().parent
ON_CPUS = [sys.executable, str(HERE / "run_on_cpus.py")]
LAUNCH = [sys.executable, "-m", "xlapipe.cli", "launch", "--processes", "2", "--wait", "60", "--"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "sharded"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        assert main(["build", "small_sharded:sharded", "--out", str(folder), "--json"]) == 0
    return folder


def said(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONWARNINGS": "default", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_manifest_says_how_leaves_lie_over_the_mesh(built: Path) -> None:
    manifest = read_manifest(built)
    assert manifest.mesh == {"data": 2}
    assert [leaf.spec for leaf in manifest.arguments] == [("data",), ("data",)]
    # XLA chose these: the workload names no out_specs.
    assert [leaf.spec for leaf in manifest.outputs] == [("data",), ("data",), ()]
    assert [leaf.size_bytes for leaf in manifest.outputs] == [512, 256, 4]


def test_two_processes_give_what_one_gives(built: Path) -> None:
    arguments = ["run", str(built), "--inputs", "random:3", "--repeat", "2", "--json"]
    alone = said([*ON_CPUS, *arguments], JAX_NUM_CPU_DEVICES="2")
    together = said([*LAUNCH, *ON_CPUS, *arguments])
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    one, two = (json.loads(each.stdout.splitlines()[-1]) for each in (alone, together))
    assert one["outputs"] == two["outputs"]
    assert len({output["sha256"] for output in one["outputs"]}) == 3
    assert (one["processes"], two["processes"]) == (1, 2)
    assert [(each["process"], each["device"]) for each in one["devices"]] == [(0, 0), (0, 1)]
    assert [(each["process"], each["device"]) for each in two["devices"]] == [(0, 0), (1, 1)]
    assert len(two["call_seconds"]) == 2


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("fails", "process 1 of 2: NCCL operation ncclCommInitRankConfig failed"),
        ("raises", "process 1 found no GPU"),
    ],
)
def test_a_process_that_fails_says_so_and_ends_the_other(
    mode: str, expected: str, built: Path, tmp_path: Path
) -> None:
    command = [*LAUNCH, *ON_CPUS, "run", str(built)]
    done = said(command, TEST_PROCESS_1=mode, TMPDIR=str(tmp_path))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("xlapipe: error")]
    assert len(errors) == 1
    assert "process 1 of 2 ended with exit code 2" in errors[0]
    assert expected in errors[0]
    assert Path(errors[0].partition("its log is ")[2].partition(";")[0]).exists()


def test_digests_are_of_whole_arrays_in_rows() -> None:
    import hashlib

    import numpy as np

    for value in (np.arange(12, dtype=np.int16).reshape(3, 4).T, np.float32(7), np.zeros((0, 2))):
        whole = running._on_host(jax.numpy.asarray(value))
        expected = hashlib.sha256(np.ascontiguousarray(whole).tobytes()).hexdigest()
        assert running._digest(whole) == expected


# Attached GPUs that are none.


class Gpu(SimpleNamespace):
    device_kind = "NVIDIA H200"
    compute_capability = "9.0"
    platform = "gpu"


def gpus(count: int) -> list[Any]:
    return [Gpu(id=number, process_index=0) for number in range(count)]


@pytest.fixture
def nccl_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "missing_to_communicate", lambda: None)


def chosen(
    built: Path, monkeypatch: pytest.MonkeyPatch, found: list[Any], hosts: int = 1
) -> tuple[Any, ...]:
    monkeypatch.setattr(jax, "devices", lambda platform: found)
    return attached.devices_for(built, read_manifest(built), hosts)


@pytest.mark.usefixtures("nccl_is_there")
def test_the_first_gpus_are_taken(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.id for each in chosen(built, monkeypatch, gpus(4))] == [0, 1]


@pytest.mark.usefixtures("nccl_is_there")
def test_fewer_gpus_than_the_mesh_has(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    expected = r"mesh {'data': 2}, 2 GPUs; attached: 1 \(CUDA_VISIBLE_DEVICES=1\); run it where"
    with pytest.raises(TargetError, match=expected):
        chosen(built, monkeypatch, gpus(1))


@pytest.mark.usefixtures("nccl_is_there")
def test_more_processes_than_the_mesh_has(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(TargetError, match="4 processes have 4; every process takes part"):
        chosen(built, monkeypatch, gpus(4))


@pytest.mark.usefixtures("nccl_is_there")
def test_another_gpu_among_them(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus(2)
    found[1].device_kind = "NVIDIA H100 80GB HBM3"
    with pytest.raises(TargetError, match="GPU 1 is NVIDIA H100 80GB HBM3"):
        chosen(built, monkeypatch, found)


@pytest.mark.usefixtures("nccl_is_there")
def test_other_hosts_than_the_topology_has(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "topology 1x2, 1 hosts; this is 2; build it again with --topology 2x1"
    with pytest.raises(TargetError, match=expected):
        chosen(built, monkeypatch, gpus(2), hosts=2)


def test_nccl_that_is_missing(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xlapipe.environment.doctor import missing_to_communicate
    from xlapipe.environment.machine import Machine

    nowhere = Machine(
        python_version=(3, 12), site_packages=[], environ={}, find_library=lambda name: None
    )
    check = missing_to_communicate(nowhere)
    assert isinstance(check, Check)
    monkeypatch.setattr(attached, "missing_to_communicate", lambda: check)
    expected = r"through NCCL: libnccl.so.2: not found in XLA's search paths, .*; fix: .*nccl-cu"
    with pytest.raises(TargetError, match=expected):
        chosen(built, monkeypatch, gpus(2))


def test_a_kernel_of_xlas_own_needs_one_process(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(thunks=(Thunk("kCollectiveKernel", 0),))
    monkeypatch.setattr(running, "open_dump", lambda folder: SimpleNamespace(plan=plan))
    member = Member(process=0, count=2, coordinator="127.0.0.1:1")
    with pytest.raises(TargetError, match="within one process only: run it without `xlapipe launc"):
        running.run(built, inputs="random:0", repeat=1, member=member)


def test_a_manifest_that_does_not_say_how(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(built)
    bare = Manifest(
        **{
            **{name: getattr(manifest, name) for name in manifest.__dataclass_fields__},
            "arguments": (ArgumentLeaf("x", (8, 16), "float32", 256, False, 0),),
            "outputs": (),
        }
    )
    monkeypatch.setattr(executable, "mesh_over", lambda axes, devices: None)
    loaded = LoadedExecutable(built, bare, tuple(gpus(2)), None)
    with pytest.raises(DumpError, match="does not say how x lies over the mesh"):
        loaded.place(bare.arguments[0], None)


@pytest.mark.parametrize("spec", [[3], "data", [["data", 1]], [{"a": 1}]])
def test_specs_of_another_form_are_refused(spec: Any, built: Path) -> None:
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
def test_leaves_pass_through_json(leaf: Any) -> None:
    data = json.loads(json.dumps(leaf.to_json()))
    assert type(leaf).from_json(data) == leaf
    assert ("spec" in data) == (leaf.spec is not None)
