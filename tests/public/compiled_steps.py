"""Compiles every step twice: by xlapipe, and by jax alone in a process without xlapipe."""

import ast
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.zoo.batch import Batch, compile_batch
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import Dump
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.registry import WorkloadReference

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "public-projects.txt"
KINDS = ("argument", "output", "alias", "temp")
_FOLDER = Path(__file__).parent
_PROCESSES = 3


def steps() -> dict[str, str]:
    """The module of each step, without importing jax."""
    return {
        node.name: path.stem
        for path in sorted((_FOLDER / "steps").glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "Step"
        and not node.name.startswith("_")
    }


class PackagesMissingError(Exception):
    """The package index does not give the projects."""


def install_packages() -> Path:
    """The folder with the projects; installed below build/ if it does not exist.

    Raises:
      PackagesMissingError: pip failed; the message ends with what it printed.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / "public-projects" / f"{version}-{digest}"
    packages = folder / "site-packages"  # by which xlapipe knows that this is not the user's code
    if packages.is_dir():
        return packages
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "site-packages"
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--no-input"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
        done = subprocess.run(
            [*command, "-r", str(REQUIREMENTS)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise PackagesMissingError(done.stderr[-300:])
        target.rename(packages)
    return packages


@dataclass(frozen=True)
class CompiledSteps:
    """What xlapipe and jax alone gave for the steps of all modules.

    Attributes:
      batches: of xlapipe, by module.
      alone: totals of jax alone by kind, or `error`, by step.
    """

    batches: Mapping[str, Batch]
    alone: Mapping[str, Mapping[str, int | str]]

    def dump(self, step: str) -> Dump:
        """The dump of xlapipe's compile."""
        return _captured(self.batches[steps()[step]], step)

    def totals(self, step: str) -> dict[str, int]:
        """Bytes of device memory by kind, from the plan."""
        totals = self.dump(step).plan.spaces[MemorySpace.HBM]
        sizes = (
            totals.parameter_bytes,
            totals.live_out_bytes,
            totals.aliased_bytes,
            totals.temp_bytes,
        )
        return dict(zip(KINDS, sizes, strict=True))


_dumps: dict[tuple[Path, str], Dump] = {}


def _captured(batch: Batch, step: str) -> Dump:
    """`batch.captured`, which can be called once only, with a memory."""
    key = (batch.folder, step)
    if key not in _dumps:
        _dumps[key] = batch.captured(step)
    return _dumps[key]


def compile_steps(folder: Path) -> CompiledSteps:
    """Compiles every step in a process per module and compiler.

    Raises:
      PackagesMissingError: the projects cannot be installed.
    """
    packages = install_packages()
    by_module: dict[str, list[str]] = {}
    for step, module in steps().items():
        by_module.setdefault(module, []).append(step)
    with ThreadPoolExecutor(_PROCESSES) as pool:
        compile_module = functools.partial(_compile_module, folder, packages)
        batches = dict(zip(by_module, pool.map(compile_module, *_columns(by_module)), strict=True))
        compile_alone = functools.partial(_compile_alone, folder, packages)
        alone = list(pool.map(compile_alone, *_columns(by_module)))
    return CompiledSteps(batches, {step: totals for part in alone for step, totals in part.items()})


def _columns(
    by_module: Mapping[str, Sequence[str]],
) -> Iterator[Sequence[str] | Sequence[list[str]]]:
    yield list(by_module)
    yield [list(names) for names in by_module.values()]


def _compile_module(folder: Path, packages: Path, module: str, names: Sequence[str]) -> Batch:
    references = [
        WorkloadReference(name, "as_workload:of", {"module": module, "step": name}, _FOLDER)
        for name in names
    ]
    part = folder / module
    part.mkdir()
    return compile_batch(references, part, packages=packages, more_paths=[ROOT])


def _compile_alone(
    folder: Path, packages: Path, module: str, names: Sequence[str]
) -> Mapping[str, Mapping[str, int | str]]:
    config, result = folder / f"{module}.txtpb", folder / f"{module}.json"
    config.write_text(target_named("h200").config_text, encoding="utf-8")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "XLA_FLAGS" and not name.startswith("JAX_")
    }
    done = subprocess.run(
        [
            *(sys.executable, "-P", str(_FOLDER / "jax_alone.py"), str(config), str(result)),
            *(f"{module}:{name}" for name in names),
        ],
        env={**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    totals: Mapping[str, Mapping[str, int | str]] = json.loads(result.read_text(encoding="utf-8"))
    return totals
