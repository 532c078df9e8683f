"""What the tests share: folders, compiled dumps of the registered workloads, marks by hardware."""

import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from xlapipe.compile import GemmPolicy, Job
from xlapipe.pipeline import Made, make_dump
from xlapipe.registry import find_workload
from xlapipe.target import target_named

ROOT = Path(__file__).resolve().parent.parent

Compile = Callable[[str, str], Made]


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The folder that `make dump` writes."""
    return ROOT / "hlo_dumps"


@pytest.fixture(scope="session")
def jaxlib_version() -> str:
    return version("jaxlib")


@pytest.fixture(scope="session")
def seeds() -> Path:
    """The reference dumps, which are not part of the repository."""
    folder = ROOT.parent / "shared" / "seeds"
    if not folder.is_dir():
        pytest.skip("the reference dumps are not here: no folder shared/seeds beside the checkout")
    return folder


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a workload for the H200 under a GEMM policy, once per test process."""
    out = tmp_path_factory.mktemp("dumps")
    made: dict[tuple[str, str], Made] = {}

    def compile_once(workload: str, policy: str) -> Made:
        key = (workload, policy)
        if key not in made:
            job = Job(
                reference=find_workload(workload),
                target=target_named("h200"),
                policy=GemmPolicy(policy),
            )
            made[key] = make_dump(job, out, folder=ROOT)
        return made[key]

    return compile_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("nvidia-smi") is None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here (no nvidia-smi)"))
