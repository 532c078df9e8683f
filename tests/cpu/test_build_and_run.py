"""Executables: built without a GPU, refused when they are not what the manifest says."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from xlapipe.cli import main
from xlapipe.dumps.dump import EXECUTABLE, open_dump
from xlapipe.dumps.manifest import MANIFEST, with_digests
from xlapipe.errors import DumpError, TargetError, WorkloadError
from xlapipe.plan.program import ArgumentLeaf
from xlapipe.platforms.nvidia import MOSAIC_CALL
from xlapipe.running import inputs as run_inputs
from xlapipe.running import run as running

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "good"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        assert main(["build", "broken:good", "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


@pytest.fixture
def cpu_in_place_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that loading is reached on a machine without a GPU."""
    monkeypatch.setattr(
        running, "devices_for", lambda path, manifest, hosts: tuple(jax.devices("cpu")[:1])
    )


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


def test_a_build_is_a_dump_with_an_executable(built: Path) -> None:
    dump = open_dump(built)
    assert dump.manifest.workload == "good"
    assert (built / EXECUTABLE).stat().st_size > 1000
    assert EXECUTABLE in dump.manifest.files


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="an NVIDIA GPU is attached")
@pytest.mark.parametrize(
    "command", [["run", "{built}"], ["target", "capture"], ["target", "capture", "--out", "t.txt"]]
)
def test_without_a_gpu(
    command: list[str],
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = said([part.format(built=built) for part in command], capsys)
    assert "no NVIDIA GPU is attached" in text
    assert "xlapipe doctor" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
    ],
    ids=["last byte", "half", "empty", "one bit"],
)
@pytest.mark.usefixtures("cpu_in_place_of_gpu")
def test_a_damaged_executable_is_refused(
    damage: Callable[[bytes], bytes], copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / EXECUTABLE
    path.write_bytes(damage(path.read_bytes()))
    assert "SHA-256" in said(["run", str(copy)], capsys)


@pytest.mark.parametrize("package", ["jaxlib", "jax-cuda13-plugin"])
def test_another_version_is_refused(package: str, copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["versions"][package] = "0.0.1"
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DumpError, match=rf"built with {package} 0\.0\.1"):
        running.run(copy, inputs="random:0", repeat=1)


def test_a_dump_without_executable_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    del manifest["files"][EXECUTABLE]
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DumpError, match="xlapipe build"):
        running.run(copy, inputs="random:0", repeat=1)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.usefixtures("cpu_in_place_of_gpu")
def test_a_strangers_directory_runs_no_code_by_being_loaded(copy: Path, tmp_path: Path) -> None:
    """The digests are right, as a stranger would make them; the executable is a pickle."""
    trace = tmp_path / "trace"
    payload = pickle.dumps((Evil(trace), [], True))
    (copy / EXECUTABLE).write_bytes(payload)
    manifest = open_dump_files(copy)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DumpError, match="cannot load it"):
        running.run(copy, inputs="random:0", repeat=1)
    assert not trace.exists()
    pickle.loads(payload)  # the payload does work where somebody unpickles it
    assert trace.exists()


LOAD = """
import os, sys
from pathlib import Path

import jax

from xlapipe.errors import DumpError
from xlapipe.running.executable import load_executable

try:
    load_executable(Path(sys.argv[1]), jax.devices("cpu")[:1])
except DumpError as error:
    assert "cannot load it" in str(error), error
print(os.environ.get("MOSAIC_GPU_RUNTIME_LIB_PATH"))
"""


@pytest.mark.parametrize("kernels", [False, True], ids=["no kernel", "a kernel"])
def test_what_mosaic_kernels_call_is_found_before_they_are_loaded(
    kernels: bool, copy: Path
) -> None:
    """In a process that lowers nothing, as `xlapipe run` is."""
    if kernels:
        content = (copy / EXECUTABLE).read_bytes()
        (copy / EXECUTABLE).write_bytes(content + MOSAIC_CALL.encode())
        (copy / MANIFEST).write_text(json.dumps(open_dump_files(copy)))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("MOSAIC_GPU_RUNTIME_LIB_PATH", None)
    command = [sys.executable, "-c", LOAD, str(copy)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    if kernels:
        assert Path(printed.stdout.strip()).is_file()
    else:
        assert printed.stdout.strip() == "None"


def open_dump_files(folder: Path) -> dict[str, Any]:
    """The manifest of `folder` with the digests of what lies there now."""
    from xlapipe.dumps.dump import read_file
    from xlapipe.dumps.manifest import Manifest

    data = json.loads((folder / MANIFEST).read_text())
    manifest = Manifest.from_json(data, where=MANIFEST)
    files = {name: read_file(folder, name) for name in manifest.files}
    return json.loads(json.dumps(with_digests(manifest, files).to_json()))  # type: ignore[no-any-return]


LEAVES = (
    ArgumentLeaf("cache['k']", (4, 8), "bfloat16", 64, True, 0),
    ArgumentLeaf("ids", (16,), "int32", 64, False, 1),
    ArgumentLeaf("unused", (3,), "float32", 12, False, None),
)


def test_random_inputs_are_the_same_for_a_seed_and_indices_differ() -> None:
    one, same = (run_inputs.read_inputs("random:3", LEAVES) for _ in range(2))
    other = run_inputs.read_inputs("random:4", LEAVES)
    assert sorted(one) == [0, 1]
    assert all((one[number] == same[number]).all() for number in one)
    assert not (one[0] == other[0]).all()
    assert sorted(one[1].tolist()) == list(range(16))


def test_inputs_from_a_file(tmp_path: Path) -> None:
    import numpy as np

    values = run_inputs.read_inputs("random:3", LEAVES)
    path = tmp_path / "inputs.npz"
    np.savez(path, **{"cache['k']": values[0], "ids": values[1]})
    found = run_inputs.read_inputs(str(path), LEAVES)
    assert all((found[number] == values[number]).all() for number in values)
    np.savez(path, **{"cache['k']": values[0], "ids": values[1][:3]})
    with pytest.raises(WorkloadError, match=r"ids is int32\[3\], expected int32\[16\]"):
        run_inputs.read_inputs(str(path), LEAVES)
    np.savez(path, ids=values[1])
    with pytest.raises(WorkloadError, match=r"no array \"cache\['k'\]\""):
        run_inputs.read_inputs(str(path), LEAVES)


@pytest.mark.parametrize("spec", ["random:x", "nowhere.npz", "random:"])
def test_inputs_that_are_none(spec: str) -> None:
    with pytest.raises(WorkloadError, match="--inputs"):
        run_inputs.read_inputs(spec, LEAVES)


@pytest.mark.usefixtures("cpu_in_place_of_gpu")
def test_another_gpu_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        device_kind = "NVIDIA A100-SXM4-80GB"
        compute_capability = "8.0"

    monkeypatch.undo()
    monkeypatch.setattr(jax, "devices", lambda platform: [Other()])
    with pytest.raises(TargetError, match=r"built for NVIDIA H200 .* attached is NVIDIA A100"):
        running.run(built, inputs="random:0", repeat=1)


def test_a_folder_of_something_else_is_refused_before_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(HERE)
    (tmp_path / "mine").write_text("kept")
    # A compile of this workload would fail with another message.
    for out in (tmp_path, tmp_path / "mine"):
        assert "holds something else" in said(
            ["build", "broken:does_not_lower", "--out", str(out)], capsys
        )
    assert (tmp_path / "mine").read_text() == "kept"
