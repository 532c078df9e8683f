"""Executables: built without a GPU, refused if they differ from the manifest."""

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

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.devices.platforms.nvidia import MOSAIC_CALL
from xlapipe.dump.dump import EXECUTABLE, open_dump
from xlapipe.dump.manifest import MANIFEST, with_digests
from xlapipe.errors import DumpError, TargetError
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.run import inputs as run_inputs
from xlapipe.run import run as running

pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "good"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        assert main(["build", "broken:good", "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


@pytest.fixture
def cpu_instead_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a run reach the loading of the executable on a machine without a GPU."""
    monkeypatch.setattr(
        running, "select_devices", lambda path, manifest, hosts: tuple(jax.devices("cpu")[:1])
    )


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints on stderr; it must exit with code 2."""
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
    "command", [["run", "{built}"], ["device", "capture"], ["device", "capture", "--out", "t.txt"]]
)
def test_without_a_gpu(
    command: list[str],
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = error_of([part.format(built=built) for part in command], capsys)
    assert "no NVIDIA GPU is attached" in text
    assert "nvidia-smi" in text
    assert "Jax plugin configuration error" not in caplog.text
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
@pytest.mark.usefixtures("cpu_instead_of_gpu")
def test_a_damaged_executable_is_refused(
    damage: Callable[[bytes], bytes], copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / EXECUTABLE
    path.write_bytes(damage(path.read_bytes()))
    assert "SHA-256" in error_of(["run", str(copy)], capsys)


@pytest.mark.parametrize("package", ["jaxlib", "jax-cuda13-plugin"])
def test_another_version_is_refused(package: str, copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["versions"][package] = "0.0.1"
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DumpError, match=rf"built with {package} 0\.0\.1"):
        running.run(copy, seed=0, repeat=1)


def test_a_dump_without_executable_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    del manifest["files"][EXECUTABLE]
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DumpError, match="xlapipe build"):
        running.run(copy, seed=0, repeat=1)


class MakesFolder:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.usefixtures("cpu_instead_of_gpu")
def test_loading_an_untrusted_directory_runs_no_code(copy: Path, tmp_path: Path) -> None:
    """The executable is a pickle, and the digests are correct, as an attacker would make them."""
    trace = tmp_path / "trace"
    payload = pickle.dumps((MakesFolder(trace), [], True))
    (copy / EXECUTABLE).write_bytes(payload)
    manifest = manifest_with_digests(copy)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DumpError, match="cannot load it"):
        running.run(copy, seed=0, repeat=1)
    assert not trace.exists()
    pickle.loads(payload)  # the payload works if it is unpickled
    assert trace.exists()


LOAD = """
import os, sys
from pathlib import Path

import jax

from xlapipe.errors import DumpError
from xlapipe.run.executable import load_executable

try:
    load_executable(Path(sys.argv[1]), jax.devices("cpu")[:1])
except DumpError as error:
    assert "cannot load it" in str(error), error
print(os.environ.get("MOSAIC_GPU_RUNTIME_LIB_PATH"))
"""


@pytest.mark.parametrize("kernels", [False, True], ids=["no kernel", "a kernel"])
def test_the_library_of_mosaic_kernels_is_located_before_loading(kernels: bool, copy: Path) -> None:
    """In a process that lowers nothing, as in `xlapipe run`."""
    if kernels:
        content = (copy / EXECUTABLE).read_bytes()
        (copy / EXECUTABLE).write_bytes(content + MOSAIC_CALL.encode())
        (copy / MANIFEST).write_text(json.dumps(manifest_with_digests(copy)))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("MOSAIC_GPU_RUNTIME_LIB_PATH", None)
    command = [sys.executable, "-c", LOAD, str(copy)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    if kernels:
        assert Path(child.stdout.strip()).is_file()
    else:
        assert child.stdout.strip() == "None"


def manifest_with_digests(folder: Path) -> dict[str, Any]:
    """The manifest of `folder` with the digests of the files as they are now."""
    from xlapipe.dump.dump import read_file
    from xlapipe.dump.manifest import Manifest

    data = json.loads((folder / MANIFEST).read_text())
    manifest = Manifest.from_json(data, where=MANIFEST)
    files = {name: read_file(folder, name) for name in manifest.files}
    return json.loads(json.dumps(with_digests(manifest, files).to_json()))  # type: ignore[no-any-return]


LEAVES = (
    ArgumentLeaf("cache['k']", (4, 8), "bfloat16", 64, True, 0),
    ArgumentLeaf("ids", (16,), "int32", 64, False, 1),
    ArgumentLeaf("unused", (3,), "float32", 12, False, None),
)


def test_random_inputs_depend_on_the_seed_and_integers_do_not_repeat() -> None:
    first, same = (run_inputs.random_inputs(3, LEAVES) for _ in range(2))
    other = run_inputs.random_inputs(4, LEAVES)
    assert sorted(first) == [0, 1]
    assert all((first[number] == same[number]).all() for number in first)
    assert not (first[0] == other[0]).all()
    assert sorted(first[1].tolist()) == list(range(16))


@pytest.mark.parametrize(
    ("name", "capability"),
    [("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA H20", "9.0"), ("NVIDIA H200 NVL", "9.0")],
)
def test_another_gpu_is_refused(
    built: Path, name: str, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OtherGpu:
        device_kind = name
        compute_capability = capability

    monkeypatch.setattr(jax, "devices", lambda platform: [OtherGpu()])
    with pytest.raises(TargetError, match=rf"built for NVIDIA H200 .* attached GPU is {name}"):
        running.run(built, seed=0, repeat=1)


def test_a_folder_with_other_files_is_refused_before_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    (tmp_path / "mine").write_text("kept")
    # Compiling this workload would fail with another message.
    for out in (tmp_path, tmp_path / "mine"):
        assert "fix: move it away" in error_of(
            ["build", "broken:does_not_lower", "--out", str(out)], capsys
        )
    assert (tmp_path / "mine").read_text() == "kept"
