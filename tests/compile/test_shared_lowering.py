"""`xlapipe dump` with several GEMM policies lowers each program once."""

from pathlib import Path

import pytest

from tests.folders import STEPS
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import WrittenDump, make_dump, make_dumps
from xlapipe.dump.dump import read_file

pytestmark = pytest.mark.jax


def test_jobs_of_one_program_are_lowered_once_and_give_the_same_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    traces = tmp_path / "traces"
    options = CompileSettings(target="h200", policies=("cublas", "triton"))
    jobs = jobs_of([f"traced:counted(path={str(traces)!r})"], options)
    outcomes: list[WrittenDump] = []

    def on_done(_: object, outcome: object) -> None:
        assert isinstance(outcome, WrittenDump), outcome
        outcomes.append(outcome)

    make_dumps(jobs, tmp_path / "shared", at_once=1, on_done=on_done)
    once = traces.read_text(encoding="utf-8")
    alone = [make_dump(job, tmp_path / "alone") for job in jobs]

    assert traces.read_text(encoding="utf-8") == once * 3
    assert [made.dump.manifest.gemm_policy for made in outcomes] == ["cublas", "triton"]
    for shared, single in zip(outcomes, alone, strict=True):
        assert single.files == shared.files
        for name in shared.dump.manifest.files:
            assert read_file(shared.dump.path, name) == read_file(single.dump.path, name), name
