"""A golden is the same wherever the lines of its program are; only its source lines move."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB, device_lock
from tests.models.test_workloads import CASES
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import open_dump, read_file
from xlapipe.files.contents import plain_name
from xlapipe.registry import WorkloadReference, find_workload

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("before_optimizations.txt", "after_optimizations.txt")
COMMENT = "# A line that moves all others.\n"
# The second has a Pallas kernel; the third a golden of a device.
QUICK = [
    ("spectral-diffusion", "cublas"),
    ("qwen3-generate-persistent", "cublas"),
    ("spectral-diffusion", "tuned"),
]
ALL = [
    *QUICK,
    *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in CASES if case not in QUICK),
]


@pytest.fixture(scope="session")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models/`, each file of which has one line more at its top."""
    folder = tmp_path_factory.mktemp("moved")
    shutil.copytree(ROOT / "models", folder / "models")
    for file in (folder / "models").rglob("*.py"):
        file.write_text(COMMENT + file.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    names = {plain_name(path.name) for path in folder.iterdir()}
    return {name: read_file(folder, name) for name in names}


@pytest.mark.parametrize(("workload", "policy"), ALL)
def test_a_comment_in_every_model_changes_no_golden(
    workload: str, policy: str, moved: Path, goldens: Path, tmp_path: Path, jaxlib_version: str
) -> None:
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"goldens are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")
    shutil.copytree(goldens / workload, tmp_path / workload)
    reference = WorkloadReference(workload, find_workload(workload).target, folder=moved)
    if policy == "tuned":
        lock = device_lock(goldens, workload)
        job = Job(reference=reference, target=lock.as_target(), lock=lock)
    else:
        target = target_named("h200")
        job = Job(reference=reference, target=target, policy=GemmPolicy(policy))

    made = make_dump(job, tmp_path, folder=moved)

    assert made.changed is False
    golden = goldens / workload / made.dump.path.name
    before, after = contents(golden), contents(made.dump.path)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    # A device may have ordered instructions otherwise, and then its lines are left as they were.
    if policy != "tuned" or all(before[name] == made.files[name] for name in TEXTS):
        assert changed == {SOURCE_LINES}
        lines = sources(made.dump.path)
        assert lines != sources(golden), "no line moved, so that this test would show nothing"
        own = [(file, line) for file, line in lines if file.startswith("models/")]
        assert own and all(line > 1 for _, line in own)
    else:
        assert changed == set()


def sources(folder: Path) -> set[tuple[str, int]]:
    """The source lines of the plan's instructions."""
    module = open_dump(folder).plan.module
    assert module is not None
    return {
        (instruction.source.file, instruction.source.line)
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.source is not None
    }
