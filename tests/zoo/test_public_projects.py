"""Real steps of public projects: their plans agree with memory_analysis() of the same compile.

The projects are installed into a folder of their own below build/, which later runs use again.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.zoo.batch import compile_batch, dumps_of, programs_in
from xlapipe.dumps.dump import Dump
from xlapipe.plan.memory_spaces import MemorySpace

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "public-projects.txt"
REFERENCES = {
    reference.name: reference
    for reference in programs_in(Path(__file__).parent / "public" / "projects.py")
}
# Leaves that are updated in place: those that the project's own step donates.
ALIASES = {
    "diffrax_solve": 0,
    "equinox_train": 19,
    "haiku_train": 16,
    "jraph_network": 0,
    "linen_decode": 3,
    "numpyro_svi": 8,
    "optimistix_least_squares": 0,
    "tunix_decode": 3,
    "tunix_train": 44,
}
# diffrax checks its own errors through callbacks.
CALLBACKS = {"diffrax_solve": 2}

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def packages(jaxlib_version: str, golden_jaxlib: str) -> Path:
    """The folder with the projects; installed if it does not exist."""
    if jaxlib_version != golden_jaxlib:
        pytest.skip(f"the projects are pinned to versions for jax {golden_jaxlib}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / "public-projects" / f"{version}-{digest}"
    if not folder.is_dir():
        _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Installs the pinned projects, or skips the tests if the package index is not reachable."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "packages"
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--no-input"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
        done = subprocess.run(
            [*command, "-r", str(REQUIREMENTS)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"the package index does not give the projects: {done.stderr[-300:]}")
        target.rename(folder)


@pytest.fixture(scope="module")
def dump_of(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dump]:
    folder = tmp_path_factory.mktemp("public")
    return dumps_of(compile_batch(REFERENCES.values(), folder, packages=packages))


def test_at_least_six_projects_are_compiled() -> None:
    projects = {name.partition("_")[0] for name in REFERENCES}
    assert {"tunix", "equinox", "diffrax", "numpyro", "linen"} <= projects
    assert len(projects) >= 6


@pytest.mark.parametrize("name", REFERENCES)
def test_plan_agrees_with_memory_analysis(name: str, dump_of: Callable[[str], Dump]) -> None:
    dump = dump_of(name)
    assert dump.plan.notes == ()  # every section was read
    analysis, totals = dump.manifest.memory_analysis, dump.plan.spaces[MemorySpace.HBM]
    assert {
        "argument": totals.parameter_bytes,
        "output": totals.live_out_bytes,
        "alias": totals.aliased_bytes,
        "temp": totals.temp_bytes,
    } == {kind: analysis[f"{kind}_bytes"] for kind in ("argument", "output", "alias", "temp")}
    assert len(dump.plan.aliases) == ALIASES[name]
    assert len(dump.plan.host_callbacks) == CALLBACKS.get(name, 0)
    for leaf in dump.manifest.arguments:
        if leaf.parameter_number is not None:
            allocation = dump.plan.parameter_allocation(leaf.parameter_number)
            assert allocation is not None, leaf.path
            assert leaf.size_bytes == allocation.size_bytes, leaf.path


def test_names_are_the_users(dump_of: Callable[[str], Dump]) -> None:
    paths = {leaf.path for leaf in dump_of("equinox_train").manifest.arguments}
    assert "model.layers[0].weight" in paths
    paths = {leaf.path for leaf in dump_of("tunix_train").manifest.arguments}
    assert any("layers.0.mlp.gate_proj.kernel" in path for path in paths), sorted(paths)[:8]
