"""Goldens stay as they are on a machine with another CPU.

Other CPUs are simulated by variables that tell NumPy, OpenBLAS, the C library and XLA to leave out
instructions that this CPU has. What a step computes eagerly, while it is imported or traced, then
differs in the last digits.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import GOLDEN_JAXLIB, ROOT
from xlapipe.devices.platforms.dump_files import SOURCE_LINES

pytestmark = [pytest.mark.jax, pytest.mark.slow]

STEP = """\
import jax
import jax.numpy as jnp
import numpy as np

from xlapipe import Workload

random = np.random.default_rng(0)
MATRIX = random.standard_normal((300, 300)).astype(np.float32)
ANGLES = np.linspace(0.1, 9, 64, dtype=np.float32)
LARGE = np.exp(np.sin(ANGLES)) * np.float32(1e6) ** (-ANGLES / 9)
SMALL = np.log(np.tanh(ANGLES[:9]) + 2)
VALUES = np.linalg.svd(MATRIX)[1][:10]
Q = np.linalg.qr(MATRIX[:4, :4])[0]


def step(x):
    eager = jax.nn.softmax(jnp.tanh(jnp.exp(jnp.linspace(-1.0, 1.0, 7))))
    noise = jax.random.normal(jax.random.key(0), (64,)) @ MATRIX[:64, :64]
    rows = x[:, :64] * LARGE + noise
    return rows, x[:, :9] * SMALL, x[:, :10] + VALUES, x[:, :4] @ Q, x[:, :7] + eager


X = jax.ShapeDtypeStruct((32, 64), jnp.float32)
workload = Workload(name="literals", fn=step, args=(X,))


def test_step(xlapipe_plan):
    answer = xlapipe_plan(step, X).matches_golden()
    print("answer:", answer)
    assert answer
"""


def _without(*features: str) -> dict[str, str]:
    """The variable that keeps NumPy from using what this CPU has of these instructions."""
    present = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore
    unused = [name for name in present if name.startswith(features)]
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(unused)} if unused else {}


CPUS: dict[str, Mapping[str, str]] = {
    "without AVX-512": _without("AVX512", "X86_V4"),
    "without AVX2": _without("AVX512", "X86_V4", "X86_V3", "AVX2", "FMA3"),
    "OpenBLAS of Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS of Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "XLA and C library without AVX2": {
        "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
    },
}
OLDEST = {name: value for cpu in CPUS.values() for name, value in cpu.items()}


def command(folder: Path, words: str, cpu: Mapping[str, str]) -> str:
    """What a command prints in a folder, on such a CPU."""
    environment = {**os.environ, "XLAPIPE_NO_CACHE": "1", **cpu}
    environment.pop("CI", None)  # in which goldens are not written
    ran = subprocess.run(
        [sys.executable, "-m", *words.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a step and its golden."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_literals.py").write_text(STEP)
    command(folder, "xlapipe dump test_literals:workload --out dumps", {})
    return folder


@pytest.fixture(scope="module")
def project_of_tests(project: Path) -> Path:
    """The same, with the golden of its test."""
    command(project, f"{PYTEST} --xlapipe-update", {})
    return project


PYTEST = "pytest -q -rP -p no:xdist -p no:cacheprovider --xlapipe-cache cache test_literals.py"


def test_dump_leaves_the_golden_of_another_cpu_as_it_is(project: Path) -> None:
    before = contents(project / "dumps")
    printed = command(project, "xlapipe dump test_literals:workload --out dumps --json", OLDEST)
    (row,) = json.loads(printed)["dumps"]
    assert row["changed"] is False
    assert contents(project / "dumps") == before
    (note,) = row["notes"]
    assert note.startswith("constants that this machine's CPU computed")
    assert note.endswith("differ in the last digits")


@pytest.mark.parametrize("cpu", [*CPUS, "the oldest"])
def test_a_plan_matches_the_golden_of_another_cpu(
    project_of_tests: Path, cpu: str, tmp_path: Path
) -> None:
    shutil.copytree(project_of_tests, tmp_path / "copy", ignore=shutil.ignore_patterns("cache"))
    printed = command(tmp_path / "copy", PYTEST, CPUS.get(cpu, OLDEST))
    assert "answer: matches golden" in printed
    if cpu == "the oldest":
        assert "constants that this machine's CPU computed" in printed


@pytest.mark.parametrize("workload", ["qwen3-generate-persistent", "qwen3-decode"])
def test_no_cpu_changes_a_golden_of_this_repository(
    workload: str, goldens: Path, tmp_path: Path, jaxlib_version: str
) -> None:
    """The first has constants of the model, the second powers that XLA folds."""
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"goldens are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")
    shutil.copytree(goldens / workload, tmp_path / workload)
    before = contents(tmp_path)
    command(ROOT, f"xlapipe dump {workload} --gemm cublas --out {tmp_path}", OLDEST)
    changed = {name for name, content in contents(tmp_path).items() if before.get(name) != content}
    assert {Path(name).name for name in changed} <= {SOURCE_LINES}
