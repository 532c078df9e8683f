"""The sample projects, run by pytest in separate folders, as a user runs them."""

import re
import shutil
from pathlib import Path

import pytest

from tests.api.test_pytest_plugin import run

pytestmark = pytest.mark.jax

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples without caches of earlier runs."""
    return Path(
        shutil.copytree(
            EXAMPLES,
            tmp_path_factory.mktemp("user") / "examples",
            ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"),
        )
    )


def plans(output: str) -> tuple[int, int]:
    """The number of plans that the run compiled, and of those from the cache."""
    match = re.search(r"plans: (\d+) compiled, (\d+) unchanged", output)
    assert match is not None, output
    return int(match[1]), int(match[2])


def without_golden(jaxlib: str, golden_jaxlib: str) -> list[str]:
    return [] if jaxlib == golden_jaxlib else ["-k", "not golden"]


@pytest.mark.slow
def test_flax_training_passes(projects: Path) -> None:
    done = run(projects / "flax_training")
    assert done.returncode == 0, done.stdout
    assert plans(done.stdout) == (1, 2)


@pytest.mark.slow
def test_a_second_run_compiles_nothing(
    projects: Path, jaxlib_version: str, golden_jaxlib: str
) -> None:
    project = projects / "plain_jax"
    chosen = without_golden(jaxlib_version, golden_jaxlib)
    # The golden is compared with the untuned plan, which is another one.
    uses, compiled = (2, 1) if chosen else (4, 2)
    first = run(project, *chosen)
    assert first.returncode == 0, first.stdout
    assert plans(first.stdout) == (compiled, uses - compiled)
    # In different processes, and after lines moved in the test file.
    file = project / "test_decode.py"
    file.write_text("# A line more.\n" + file.read_text())
    second = run(project, *chosen, "-n", "2")
    assert second.returncode == 0, second.stdout
    assert plans(second.stdout) == (0, uses)


@pytest.mark.slow
def test_a_missing_donation_is_explained_first(
    projects: Path, jaxlib_version: str, golden_jaxlib: str
) -> None:
    project = projects / "plain_jax"
    file = project / "test_decode.py"
    kept = file.read_text()
    file.write_text(kept.replace(', donate="cache"', ""))
    try:
        done = run(project, "-k", "place or golden")
    finally:
        file.write_text(kept)
    assert done.returncode == 1
    assert plans(done.stdout) == (2, 1)
    lines = done.stdout.splitlines()
    first = next(
        number for number, line in enumerate(lines) if "Donated(name='cache') does not hold" in line
    )
    assert "E       AssertionError: Donated(name='cache')" in lines[first]
    after = "\n".join(lines[first : first + 12])
    assert "it is not donated; out[1]['key'] has a separate allocation" in after
    assert "decode.py:30" in after
    assert "add the argument 'cache' to donate_argnums" in after
    if jaxlib_version == golden_jaxlib:
        assert "cache['key'] is no longer donated" in done.stdout
    else:
        assert "there is no golden hlo_dumps/decode/" in done.stdout
