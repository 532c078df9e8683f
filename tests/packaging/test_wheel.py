"""sdist and wheel are built; the wheel is installed in an empty environment and used there."""

import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.packaging.environment import (
    Environment,
    environment_with,
    required_by,
    requirements,
)
from tests.packaging.readme import Example, example

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"xlapipe-{PROJECT['version']}"
WORKLOADS = "import importlib.metadata as m; print(m.entry_points(group='xlapipe.workloads'))"


def sources(package: str) -> set[str]:
    """The files of a package in the checkout, without those that Python leaves there."""
    files = (ROOT / package).rglob("*")
    return {
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }


def hatchling(target: str, checkout: Path, out: Path) -> Path:
    """Builds without the network: hatchling is installed where the tests run."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=100)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatchling("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as pip does it where there is no wheel."""
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked := tmp_path_factory.mktemp("unpacked"), filter="data")
    return hatchling("wheel", unpacked / NAME, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment_with(wheel, "cuda", tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture(scope="module")
def step() -> Example:
    return example()


@pytest.fixture
def project(step: Example, tmp_path: Path) -> Iterator[Path]:
    """The README's project, with the step that passes."""
    (tmp_path / "step.py").write_text(step.passing, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(step.table, encoding="utf-8")
    (tmp_path / "below").mkdir()
    yield tmp_path


def test_the_sdist_holds_the_packages_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    generated = {"PKG-INFO", ".gitignore"}
    pages = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
    assert names - generated == sources("xlapipe") | sources("models") | pages


def test_the_wheel_holds_xlapipe_alone(wheel: Path) -> None:
    information = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    expected = sources("xlapipe") | {f"{NAME}.dist-info/{name}" for name in information}
    assert set(zipfile.ZipFile(wheel).namelist()) == expected


def test_the_wheel_requires_what_xlapipe_imports(environment: Environment) -> None:
    required = {str(requirement) for requirement in requirements(environment, extra="")}
    assert required == set(PROJECT["dependencies"])
    shown = environment.run("python", "-c", WORKLOADS, folder=environment.folder)
    assert (shown.stdout, shown.stderr) == ("()\n", "")
    for package in ("models", "flax", "optax", "jaxtyping", "pytest"):
        imported = environment.run("python", "-c", f"import {package}", folder=environment.folder)
        assert f"No module named '{package}'" in imported.stderr


def test_the_cuda_extra_pins_the_plugin_to_the_version_of_jax(environment: Environment) -> None:
    """`pip install 'xlapipe[cuda]' jax==X` brings the plugin X, through jax's own extra."""
    names = {need.name: need for need in requirements(environment, extra="cuda")}
    assert set(names) - {Requirement(line).name for line in PROJECT["dependencies"]} == {
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
    }
    (jax,) = (need for need in requirements(environment, extra="cuda") if need.extras)
    assert (jax.name, jax.extras) == ("jax", {"cuda13-local"})
    versions = {"0.10.1", "0.10.2", "0.11.1", "0.11.2", "0.12.0.1", "0.99", version("jax")}
    for package, extra, needed in [
        ("jax", "cuda13-local", "jaxlib"),
        ("jax", "cuda13-local", "jax-cuda13-plugin"),
        ("jax-cuda13-plugin", "", "jax-cuda13-pjrt"),
    ]:
        admitted = versions
        for need in required_by(package, extra):
            if need.name == needed:
                admitted = {name for name in admitted if need.specifier.contains(name)}
        assert admitted == {version("jax")}, needed


def test_every_module_imports_without_the_checkout(environment: Environment) -> None:
    """All but those for pytest, which brings pytest itself, and the start of the child."""
    names = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in sorted(sources("xlapipe"))
        if path.endswith(".py") and "__main__" not in path and "_start_child" not in path
    ]
    names = [name for name in names if name != "xlapipe.api.testing.pytest_plugin"]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    imported = environment.run("python", "-c", code, *names, folder=environment.folder)
    assert (imported.returncode, imported.stderr) == (0, "")


def test_commands_of_an_empty_folder(environment: Environment, tmp_path: Path) -> None:
    listed = environment.run("xlapipe", "list", "--json", folder=tmp_path)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
    doctor = environment.run("xlapipe", "doctor", "--json", folder=tmp_path)
    checks = json.loads(doctor.stdout)["checks"]
    assert doctor.returncode == 0
    assert [check["name"] for check in checks if check["ok"] is False] == []
    unknown = environment.run("xlapipe", "check", "qwen3-decode", folder=tmp_path)
    assert unknown.returncode == 2
    assert "unknown workload 'qwen3-decode'" in unknown.stderr


def _words(text: str) -> list[str]:
    """The README shows what a terminal gets, whose lines are folded; a pipe's are not."""
    return text.split()


def test_the_step_of_the_readme_fails(
    environment: Environment, step: Example, tmp_path: Path
) -> None:
    (tmp_path / "step.py").write_text(step.failing, encoding="utf-8")
    checked = environment.run("xlapipe", "check", "step:workload", folder=tmp_path)
    assert (_words(checked.stdout), checked.stderr) == (_words(step.printed_failing), "")
    assert checked.returncode == 1


def test_the_step_of_the_readme_passes(
    environment: Environment, step: Example, project: Path
) -> None:
    checked = environment.run("xlapipe", "check", "step:workload", folder=project)
    assert (_words(checked.stdout), checked.stderr) == (_words(step.printed_passing), "")
    assert checked.returncode == 0


def test_a_project_has_one_dump_from_all_its_folders(
    environment: Environment, project: Path
) -> None:
    dumps = []
    for folder in (project, project / "below"):
        out = folder / "dumps"
        dumped = environment.run("xlapipe", "dump", "my-step", "--out", str(out), folder=folder)
        assert (dumped.returncode, dumped.stderr) == (0, "")
        # What the compile took is of one run.
        files = [p for p in out.rglob("*") if p.is_file()]
        dumps.append({str(path.relative_to(out)): path.read_bytes() for path in files})
    assert dumps[0] == dumps[1]
    (manifest,) = (content for name, content in dumps[0].items() if name.endswith("manifest.json"))
    assert json.loads(manifest)["workload"] == "my-step"
    (text,) = (content for name, content in dumps[0].items() if name.endswith("/source_lines.json"))
    assert b'"step.py"' in text
