"""What the tests share that compile with libtpu; they skip without it."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import CompiledDump
from xlapipe.expect import check_all

ROOT = Path(__file__).resolve().parents[2]

try:
    LIBTPU: str | None = version("libtpu")
except PackageNotFoundError:
    LIBTPU = None

needs_libtpu = pytest.mark.skipif(LIBTPU is None, reason="libtpu is not installed: make test-tpu")


def job_of(workload: str, target: str = "v6e", topology: str | None = None) -> Job:
    (job,) = jobs_of([workload], CompileSettings(target=target, topology=topology))
    return job


def own(name: str) -> str:
    """The reference of a workload in `steps.py`."""
    return f"tests.tpu.steps:{name}"


def failures(dump: CompiledDump) -> Sequence[object]:
    findings = check_all(dump.dump.expectations, dump.dump)
    assert findings
    return [finding for finding in findings if not finding.holds]
