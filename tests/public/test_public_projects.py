"""Steps of public projects: their plans agree with a compile by jax alone.

The projects are installed into a folder of their own below build/, which later runs use again.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.public.jax_alone import KINDS
from tests.public.steps import STEPS
from tests.zoo.batch import compile_batch
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import Dump
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.registry import WorkloadReference

FOLDER = Path(__file__).parent
REQUIREMENTS = ROOT / "requirements" / "public-projects.txt"

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def packages(jaxlib_version: str, golden_jaxlib: str) -> Path:
    """The folder with the projects; installed if it does not exist."""
    if jaxlib_version != golden_jaxlib:
        pytest.skip(f"the projects are pinned to versions for jax {golden_jaxlib}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / "public-projects" / f"{version}-{digest}"
    installed = folder / "site-packages"  # by which xlapipe knows that this is not the user's code
    if installed.is_dir():
        return installed
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "site-packages"
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--no-input"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
        done = subprocess.run(
            [*command, "-r", str(REQUIREMENTS)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"the package index does not give the projects: {done.stderr[-300:]}")
        target.rename(installed)
    return installed


@pytest.fixture(scope="module")
def dumps(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Dump]:
    references = [WorkloadReference(name, "steps:of", {"step": name}, FOLDER) for name in STEPS]
    folder = tmp_path_factory.mktemp("public")
    batch = compile_batch(references, folder, packages=packages, more_paths=[ROOT])
    return {name: batch.captured(name) for name in STEPS}


@pytest.fixture(scope="module")
def alone(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Totals of jax alone, from a process without xlapipe's compile."""
    folder = tmp_path_factory.mktemp("alone")
    config, result = folder / "config.txtpb", folder / "totals.json"
    config.write_text(target_named("h200").config_text, encoding="utf-8")
    names = [name for name in os.environ if name != "XLA_FLAGS" and not name.startswith("JAX_")]
    path = f"{packages}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-P", str(FOLDER / "jax_alone.py"), str(config), str(result)],
        env={**{n: os.environ[n] for n in names}, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    totals: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return totals


@pytest.mark.parametrize("step", STEPS)
def test_plan_agrees_with_jax_alone(
    step: str, dumps: Mapping[str, Dump], alone: Mapping[str, Any]
) -> None:
    dump = dumps[step]
    space = dump.plan.spaces[MemorySpace.HBM]
    sizes = (space.parameter_bytes, space.live_out_bytes, space.aliased_bytes, space.temp_bytes)
    totals = dict(zip(KINDS, sizes, strict=True))
    assert totals == alone[step]
    assert totals == {kind: dump.manifest.memory_analysis[f"{kind}_bytes"] for kind in KINDS}
    assert dump.plan.notes == ()  # every section was read


@pytest.mark.parametrize(
    ("step", "path"),
    [("equinox_mlp", "model.layers[0].weight"), ("nnx_linear", "model.kernel")],
)
def test_names_and_source_lines_are_the_users(
    step: str, path: str, dumps: Mapping[str, Dump]
) -> None:
    assert path in {leaf.path for leaf in dumps[step].manifest.arguments}
    module = dumps[step].plan.module
    assert module is not None
    files = {it.source.file for _, it in module.instructions() if it.source is not None}
    assert files
    assert all(file.endswith("steps.py") for file in files), files
