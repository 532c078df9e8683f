"""What the tests share: folders, and compiled dumps of the registered workloads."""

import gc
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import CompiledDump, make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.autotune_lock import LOCK, AutotuneLock, read_lock
from xlapipe.registry import find_workload

# Shapes and types in the models' annotations are checked in every call that a test's own process
# makes. Compiling children import the models without the checks.
install_import_hook("models", "beartype.beartype")

# No test takes a plan from this user's cache; tests of the cache switch theirs on.
os.environ["XLAPIPE_NO_CACHE"] = "1"

ROOT = Path(__file__).resolve().parent.parent

# The jaxlib that goldens are kept for: there, a missing golden is a failure.
GOLDEN_JAXLIB = (ROOT / "requirements/goldens-jax").read_text(encoding="utf-8").strip()

# Compiled for the comparison with torch's plans only.
TORCH_TWINS = frozenset({"torch-block", "torch-mlp", "torch-resnet18"})

# One compile of theirs takes about 90 s of CPU.
RESNETS = frozenset({"resnet50-backward", "resnet50-forward", "resnet50-train"})

# Has no golden of a device as it is registered: it takes eight GPUs, and was tuned on four.
NEVER_TUNED = {"qwen3-train"}

Compile = Callable[[str, str], CompiledDump]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest file first, since `--dist loadfile` gives whole files to workers."""
    items.sort(key=lambda item: item.path.stem != "test_workloads")


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Imports jax before the first test file that has the marker `jax`.

    The import hook gives the modules of `models` a bytecode cache separate from everyone's, and so,
    by the way it does that, each module that is first imported from within one: jax would be
    compiled from source.
    """
    if "pytest.mark.jax" in module_path.read_text(encoding="utf-8"):
        # Numerics are tested at small sizes, where XLA's CPU backend takes longer to optimise a
        # program than it takes to run. Compiling children do not receive this variable.
        os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
        import optax  # noqa: F401


def pytest_collection_finish() -> None:
    """Lets the garbage collector run less often, as in compiling children.

    Dumps are a million objects without cycles: searching them took a tenth of the time of the tests
    that read some.
    """
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The folder that `make dump` writes."""
    return ROOT / "hlo_dumps"


@pytest.fixture(scope="session")
def jaxlib_version() -> str:
    return version("jaxlib")


@pytest.fixture(scope="session")
def golden_jaxlib() -> str:
    return GOLDEN_JAXLIB


@pytest.fixture(scope="session")
def seeds() -> Path:
    """The reference dumps, which are not part of the repository."""
    folder = ROOT.parent / "shared" / "seeds"
    if not folder.is_dir():
        pytest.skip("the reference dumps are not here: no folder shared/seeds beside the checkout")
    return folder


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory, goldens: Path) -> Compile:
    """Compiles a workload under a GEMM policy, once per test process: for the H200.

    The policy `tuned` is `auto` with the autotune lock beside the device's golden, for the H100.
    """
    out = tmp_path_factory.mktemp("dumps")
    made: dict[tuple[str, str], CompiledDump] = {}

    def compile_once(workload: str, policy: str) -> CompiledDump:
        key = (workload, policy)
        if key not in made:
            reference = find_workload(workload)
            if policy == "tuned":
                lock = device_lock(goldens, workload)
                job = Job(reference=reference, target=lock.as_target(), lock=lock)
            else:
                target = target_named("h200")
                job = Job(reference=reference, target=target, policy=GemmPolicy(policy))
            made[key] = make_dump(job, out, folder=ROOT)
        return made[key]

    return compile_once


def device_lock(goldens: Path, workload: str) -> AutotuneLock:
    """The lock beside the golden that a device wrote; skips where none can be expected."""
    jaxlib = version("jaxlib")
    folder = goldens / workload
    found = sorted(folder.glob(f"h100_sxm-*auto-tuned-jax{jaxlib}/{LOCK}"))
    if not found and jaxlib != GOLDEN_JAXLIB:
        pytest.skip(
            f"devices' goldens were written with jaxlib {GOLDEN_JAXLIB}, this is {jaxlib}: "
            "plans of this version are checked against the expectations alone"
        )
    assert found, f"{folder}: no lock of an H100 for jaxlib {jaxlib}"
    return read_lock(found[0])
