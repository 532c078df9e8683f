"""What a compile took: beside the dump, and in no golden."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.steps import timed_steps
from xlapipe.cli import main
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.dump.manifest import MANIFEST
from xlapipe.errors import DumpError
from xlapipe.plans.compile_times import (
    COMPILE_TIMES,
    CompileTimes,
    Copies,
    read_compile_times,
)
from xlapipe.plans.hlo import SourceLine
from xlapipe.workload import Workload

pytestmark = pytest.mark.jax
CONFIG = target_named("h200").config_text


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dump]:
    settings = CompileSettings(target="h200", use_cache=False)
    (job,) = jobs_of(["tests.steps.timed_steps:unrolled_workload"], settings)
    yield make_dump(job, tmp_path_factory.mktemp("dumps")).dump


def test_times_are_beside_the_dump_and_change_no_golden(
    dump: Dump, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((dump.path / MANIFEST).read_text())
    assert COMPILE_TIMES not in manifest["files"]
    before = {path.name: path.read_bytes() for path in dump.path.iterdir()}
    settings = CompileSettings(target="h200", use_cache=False)
    (job,) = jobs_of(["tests.steps.timed_steps:unrolled_workload"], settings)
    assert not make_dump(job, dump.path.parents[1]).changed
    assert {path.name: path.read_bytes() for path in dump.path.iterdir()} == before

    assert main(["show", str(dump.path)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "Compiled in " in lines
    assert "tests/steps/timed_steps.py:18: 30 of 30 operations are 6 copies of a loop" in lines
    assert main(["show", str(dump.path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["compile_time"]
    assert row["seconds"].keys() == {"load", "lower", "compile"}
    assert min(row["seconds"].values()) > 0


def test_a_dump_without_times_an_older_one_and_a_damaged_file(dump: Dump, tmp_path: Path) -> None:
    for path in dump.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / COMPILE_TIMES).write_text('{"schema_version": 1, "seconds": 3}')
    with pytest.raises(DumpError, match="seconds: expected an object"):
        open_dump(tmp_path)
    older = {"schema_version": 1, "stages": {"compile": {"wall": 1, "cpu": 1}}, "machine": "m"}
    (tmp_path / COMPILE_TIMES).write_text(json.dumps(older))
    assert open_dump(tmp_path).compile_times is None
    (tmp_path / COMPILE_TIMES).unlink()
    assert open_dump(tmp_path).compile_times is None


@pytest.mark.parametrize(
    ("workload", "times", "line"),
    [
        (timed_steps.unrolled_workload, 6, 18),
        (timed_steps.scanned_workload, None, None),
        # Leaves that are updated one by one are no iterations of a scan.
        (timed_steps.mapped_workload, None, None),
        (timed_steps.of_two_shapes_workload, None, None),
    ],
)
def test_copies_of_a_loops_body_are_counted(
    workload: Workload, times: int | None, line: int | None
) -> None:
    copies = lower(workload, CONFIG).copies
    assert (copies and copies.times) == times
    if copies is not None and copies.source is not None:
        assert copies.operations == copies.of == 5 * 6
        assert (Path(copies.source.file).name, copies.source.line) == ("timed_steps.py", line)


def test_an_unrolled_loop_is_named_where_it_is_most_of_a_program() -> None:
    copies = Copies(SourceLine("step.py", 9), 300, 2_900, 3_000)
    times = CompileTimes(seconds={"lower": 1.0, "compile": 9.0}, copies=copies)
    assert times.text.startswith("10.0 s: lower 1.0, compile 9.0; step.py:9: 2,900 of 3,000")
    assert "jax.lax.scan" in times.text
    for few in (replace(copies, times=3), replace(copies, operations=300)):
        assert replace(times, copies=few).text == "10.0 s: lower 1.0, compile 9.0"


@pytest.mark.parametrize("change", [{"compile": 1e9}, {"compile": -1}])
def test_times_that_no_compile_takes(tmp_path: Path, change: Any) -> None:
    (tmp_path / COMPILE_TIMES).write_text(json.dumps({"schema_version": 1, "seconds": change}))
    with pytest.raises(DumpError, match=r"compile_times\.json: .*seconds"):
        read_compile_times(tmp_path)
