"""The workflow under `.github/workflows`: keys of the schema that it uses, and its rights."""

import re
import subprocess
from typing import Any

import pytest

from tests.conftest import ROOT

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
TEXT = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
STEPS = [(name, step) for name, job in WORKFLOW["jobs"].items() for step in job["steps"]]
JOB_KEYS = {"runs-on", "timeout-minutes", "steps"}
STEP_KEYS = {"name", "uses", "run", "with"}


def test_it_runs_on_pull_requests_and_may_only_read() -> None:
    # YAML 1.1 reads the key `on` as True.
    assert WORKFLOW.keys() == {"name", True, "permissions", "concurrency", "jobs"}
    assert WORKFLOW[True] == {"pull_request": None}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "secrets" not in TEXT and "token" not in TEXT.lower()
    assert set(re.findall(r"\$\{\{ (.*?) \}\}", TEXT)) == {"github.ref"}


def test_jobs_have_the_keys_of_the_schema() -> None:
    for job in WORKFLOW["jobs"].values():
        assert job.keys() == JOB_KEYS
        assert job["runs-on"] == "ubuntu-latest" and 0 < job["timeout-minutes"] <= 360


@pytest.mark.parametrize(("job", "step"), STEPS)
def test_a_step_is_an_action_of_a_version_or_a_script(job: str, step: dict[str, Any]) -> None:
    assert step.keys() <= STEP_KEYS and ("uses" in step) != ("run" in step), job
    if "uses" in step:
        assert re.fullmatch(r"actions/(checkout|setup-python)@v\d+", step["uses"])
    else:
        subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
        assert not re.search(r"upload|publish|twine|gh-pages|deploy|push", step["run"])


def test_it_runs_ci_and_builds_wheel_and_site() -> None:
    scripts = "\n".join(step.get("run", "") for _, step in STEPS)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    for command in (".ci/run", "python -m build --wheel", "make docs"):
        assert command in scripts
    assert re.search(r"^docs: ", (ROOT / "Makefile").read_text(), re.MULTILINE)
