"""The doctor, on this machine and on fake machines that are folders of files."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from xlapipe.cli import main
from xlapipe.compile import doctor
from xlapipe.compile.doctor import Check, examine, missing_to_compile
from xlapipe.devices.environment.machine import Machine

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[2]
WHEELS = {
    "jax": "0.11.2",
    "jaxlib": "0.11.2",
    "jax-cuda13-plugin": "0.11.2",
    "jax-cuda13-pjrt": "0.11.2",
    "jinja2": "3.1.6",
    "markupsafe": "3.0.4",
    "msgspec": "0.22.0",
    "numpy": "2.5.5",
    "protobuf": "7.36.2",
    "rich": "15.0.0",
    "scipy": "1.18.1",
}
FILES = (
    "jax_cuda13_plugin/cuda_plugin_extension.so",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    "nvidia/cu13/bin/ptxas",
    "nvidia/cu13/bin/nvlink",
    "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
)


class Fake:
    """A machine of folders: a complete environment, from which tests remove pieces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "site-packages"
        self.nvidia_smi: str | None = None
        for name, version in WHEELS.items():
            self.install(name, version)
        for file in FILES:
            self.write(self.packages / file)

    def install(self, name: str, version: str) -> None:
        for old in self.packages.glob(f"{name.replace('-', '_')}-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        lines = [f"Name: {name}", f"Version: {version}"]
        info = self.packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        info.parent.mkdir(parents=True)
        info.write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]), encoding="utf-8")

    def uninstall(self, name: str) -> None:
        (info,) = self.packages.glob(f"{name.replace('-', '_')}-*.dist-info")
        (info / "METADATA").unlink()
        info.rmdir()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        path.chmod(0o755)

    def machine(self, **environ: str) -> Machine:
        return Machine(
            python_version=(3, 12, 1),
            site_packages=[self.packages],
            environ={"PATH": str(self.folder / "bin"), **environ},
            toolkits=[self.folder / "toolkit"],
            devices=self.folder / "dev",
            run=self._run,
            find_library=lambda name: None,
        )

    def _run(self, command: Sequence[str]) -> str | None:
        assert command[0] == "nvidia-smi"
        return self.nvidia_smi


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def check_of(machine: Machine, name: str) -> Check:
    (check,) = [check for check in examine(machine) if check.name == name]
    return check


def can_compile(checks: Sequence[Check]) -> bool:
    return not any(check.ok is False for check in checks)


def test_complete_environment_compiles(fake: Fake) -> None:
    checks = examine(fake.machine())
    assert can_compile(checks)
    assert [check.name for check in checks if check.ok is not True] == [
        "cuDNN",
        "libtpu",
        "jax-rocm7-plugin",
        "jax-rocm7-pjrt",
    ]
    assert missing_to_compile(fake.machine()) == []


def test_this_environment_compiles() -> None:
    assert missing_to_compile() == []
    assert can_compile(examine())


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        ("jax", "python -m pip install 'jax>=0.10.2'"),
        ("jaxlib", "python -m pip install 'jaxlib==0.11.2'"),
        (
            "jax-cuda13-pjrt",
            "python -m pip install 'jax-cuda13-plugin==0.11.2' 'jax-cuda13-pjrt==0.11.2'",
        ),
        (
            "jax-cuda13-plugin",
            "python -m pip install 'jax-cuda13-plugin==0.11.2' 'jax-cuda13-pjrt==0.11.2'",
        ),
    ],
)
def test_missing_package(fake: Fake, package: str, remedy: str) -> None:
    fake.uninstall(package)
    (check,) = missing_to_compile(fake.machine())
    assert (check.name, check.found, check.remedy) == (package, "not installed", remedy)
    assert check.missing


@pytest.mark.parametrize("package", sorted(doctor.OLDEST_PACKAGES))
def test_a_missing_library_does_not_stop_a_compile(fake: Fake, package: str) -> None:
    fake.uninstall(package)
    assert missing_to_compile(fake.machine()) == []
    assert not can_compile(examine(fake.machine()))
    oldest = doctor.OLDEST_PACKAGES[package]
    check = check_of(fake.machine(), package)
    assert check.remedy == f"python -m pip install '{package}>={oldest}'"


@pytest.mark.parametrize("package", ["jax-cuda13-plugin", "jax-cuda13-pjrt"])
def test_a_wrong_version_is_not_missing(fake: Fake, package: str) -> None:
    fake.install(package, "0.12.0.1")
    (check,) = missing_to_compile(fake.machine())
    assert (check.ok, check.missing) == (False, False)
    assert check.problem == (
        f"{package}: found 0.12.0.1, expected 0.11.2, the version of jaxlib; "
        "fix: python -m pip install 'jax-cuda13-plugin==0.11.2' 'jax-cuda13-pjrt==0.11.2'"
    )


def test_the_doctor_prints_wrong_and_missing(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.install("jax-cuda13-plugin", "0.12.0.1")
    fake.uninstall("jax-cuda13-pjrt")
    monkeypatch.setattr(Machine, "local", fake.machine)
    assert main(["doctor"]) == 2
    fix = "fix: python -m pip install 'jax-cuda13-plugin==0.11.2' 'jax-cuda13-pjrt==0.11.2'"
    expected = f"         expected 0.11.2, the version of jaxlib; {fix}"
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:7] == [
        "WRONG    jax-cuda13-plugin: found 0.12.0.1",
        expected,
        "MISSING  jax-cuda13-pjrt: not installed",
        expected,
    ]
    assert main(["doctor", "--json"]) == 2
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert [checks[name]["missing"] for name in ("jax-cuda13-plugin", "jax-cuda13-pjrt")] == [
        False,
        True,
    ]


def test_cudnn_is_optional(fake: Fake) -> None:
    check = check_of(fake.machine(), "cuDNN")
    assert (check.ok, check.found) == (None, "not installed")
    assert check.remedy == "python -m pip install 'nvidia-cudnn-cu13>=9.12,<10'"
    fake.write(fake.packages / "nvidia/cudnn/lib/libcudnn.so.9")
    assert check_of(fake.machine(), "cuDNN").ok is True


def test_plugin_without_its_library(fake: Fake) -> None:
    (fake.packages / "jax_plugins/xla_cuda13/xla_cuda_plugin.so").unlink()
    (check,) = missing_to_compile(fake.machine())
    assert check.found == "0.11.2 without its xla_cuda_plugin.so"


def test_old_python_and_old_jax(fake: Fake) -> None:
    fake.install("jax", "0.9.2")
    machine = replace(fake.machine(), python_version=(3, 10, 13))
    assert [check.name for check in missing_to_compile(machine)] == ["Python", "jax"]


def test_ptxas_is_found_in_xlas_search_paths(fake: Fake) -> None:
    wheel = fake.packages / "nvidia/cu13/bin/ptxas"
    assert fake.machine().cuda_tool("ptxas") == wheel
    root = fake.folder / "root"
    fake.write(root / "bin/ptxas")
    assert fake.machine(CUDA_ROOT=str(root)).cuda_tool("ptxas") == root / "bin/ptxas"
    wheel.unlink()
    (check,) = missing_to_compile(fake.machine())
    assert check.name == "ptxas"
    assert check.remedy == "python -m pip install 'nvidia-cuda-nvcc==13.*' 'nvidia-nvvm==13.*'"
    fake.write(fake.folder / "toolkit/bin/ptxas")
    assert fake.machine().cuda_tool("ptxas") == fake.folder / "toolkit/bin/ptxas"
    fake.write(fake.folder / "bin/ptxas")
    assert fake.machine().cuda_tool("ptxas") == fake.folder / "bin/ptxas"
    (fake.folder / "bin/ptxas").chmod(0o644)
    assert fake.machine().cuda_tool("ptxas") == fake.folder / "toolkit/bin/ptxas"


def test_missing_libdevice(fake: Fake) -> None:
    folder = fake.packages / "nvidia/cu13/nvvm/libdevice"
    (folder / "libdevice.10.bc").unlink()
    (check,) = missing_to_compile(fake.machine())
    assert check.found == (
        f"{folder}, the first such folder in XLA's search paths, without the file"
    )
    assert check.remedy == "python -m pip install --force-reinstall 'nvidia-nvvm==13.*'"
    folder.rmdir()
    (check,) = missing_to_compile(fake.machine())
    assert check.found == "not found in XLA's search paths"
    assert check.remedy == "python -m pip install 'nvidia-nvvm==13.*'"
    fake.write(fake.folder / "toolkit/nvvm/libdevice/libdevice.10.bc")
    assert missing_to_compile(fake.machine()) == []


def test_oldest_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = {"jax": doctor.OLDEST_JAX, "jaxlib": doctor.OLDEST_JAX, **doctor.OLDEST_PACKAGES}
    assert requirements(oldest) == sorted(project["dependencies"])
    extras = project["optional-dependencies"]
    assert extras["cudnn"] == ["nvidia-cudnn-cu13>=9.12,<10"]
    assert project["requires-python"] == f">={'.'.join(map(str, doctor.OLDEST_PYTHON))}"


def requirements(oldest: Mapping[str, str]) -> list[str]:
    return sorted(f"{name}>={version}" for name, version in oldest.items())


def test_libtpu_is_optional_but_for_a_tpu(fake: Fake) -> None:
    assert check_of(fake.machine(), "libtpu").ok is None
    assert missing_to_compile(fake.machine()) == []
    (check,) = missing_to_compile(fake.machine(), platform="tpu")
    assert check.problem == (
        "libtpu: not installed, expected any version, to compile for TPUs; fix: python -m pip "
        "install 'libtpu'"
    )


def test_the_wheels_for_amd_gpus_are_of_the_release_of_jaxlib(fake: Fake) -> None:
    fake.install("jax", "0.12.0.1")
    fake.install("jaxlib", "0.12.0.1")
    fake.install("jax-rocm7-plugin", "0.11.2")
    plugin, pjrt = missing_to_compile(fake.machine(), platform="rocm")
    assert check_of(fake.machine(), "jax-rocm7-pjrt").ok is None
    assert plugin.problem.startswith("jax-rocm7-plugin: found 0.11.2, expected 0.12.0, as jaxlib")
    assert pjrt.problem.endswith("'jax-rocm7-plugin==0.12.0.*' 'jax-rocm7-pjrt==0.12.0.*'")
    fake.install("jax-rocm7-plugin", "0.12.0")
    fake.install("jax-rocm7-pjrt", "0.12.0")
    assert missing_to_compile(fake.machine(), platform="rocm") == []
    fake.uninstall("jax-cuda13-plugin")
    assert check_of(fake.machine(), "jax-cuda13-plugin").ok is None


def test_a_tpu_needs_no_cuda(fake: Fake) -> None:
    fake.install("libtpu", "0.0.48.1")
    fake.uninstall("jax-cuda13-plugin")
    assert missing_to_compile(fake.machine(), platform="tpu") == []
    assert missing_to_compile(fake.machine()) != []
