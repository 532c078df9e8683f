"""What a compile took: beside the dump, in no golden, and compared by ratio."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.steps import timed_steps
from xlapipe.cli import main
from xlapipe.compile import compile_timeline
from xlapipe.compile.compile_timeline import timed_compile
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.differences import compare_opened
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.dump.manifest import MANIFEST
from xlapipe.errors import DumpError
from xlapipe.plans.compile_times import (
    COMPILE_TIMES,
    CompileTimes,
    Copies,
    KernelSeconds,
    StageSeconds,
    largest_cause,
    read_compile_times,
)
from xlapipe.workload import Workload

pytestmark = pytest.mark.jax
CONFIG = target_named("h200").config_text


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dump]:
    settings = CompileSettings(target="h200", use_cache=False)
    (job,) = jobs_of(["tests.steps.timed_steps:large_workload"], settings)
    yield make_dump(job, tmp_path_factory.mktemp("dumps")).dump


def times_of(cpu: float, *, machine: str = "a CPU, 2 cores") -> CompileTimes:
    stages = {"trace": StageSeconds(0.5, 0.5), "compile": StageSeconds(cpu, cpu - 0.5)}
    return CompileTimes(machine=machine, stages=stages)


def test_the_kernel_that_takes_longest_is_named_with_its_line(dump: Dump) -> None:
    times = dump.compile_times
    assert times is not None
    assert times.stages.keys() == {"trace", "lower", "compile"}
    assert 0 < times.stage_seconds["code"] < times.stages["compile"].wall
    assert times.passes[0].seconds > 0
    longest = max(times.kernels, key=lambda kernel: kernel.seconds)
    cause = largest_cause(replace(times, passes=()), dump.plan)
    assert f"kernel {longest.kernel} at tests/steps/timed_steps.py:28 takes" in cause
    launched = {thunk.kernel for thunk in dump.plan.thunks or ()} - {""}
    assert {kernel.kernel for kernel in times.kernels if kernel.kernel} == launched


def test_times_are_beside_the_dump_and_change_no_golden(
    dump: Dump, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((dump.path / MANIFEST).read_text())
    assert COMPILE_TIMES not in manifest["files"]
    before = {path.name: path.read_bytes() for path in dump.path.iterdir()}
    settings = CompileSettings(target="h200", use_cache=False)
    (job,) = jobs_of(["tests.steps.timed_steps:large_workload"], settings)
    assert not make_dump(job, dump.path.parents[1]).changed
    assert {path.name: path.read_bytes() for path in dump.path.iterdir()} == before

    assert main(["show", str(dump.path)]) == 0
    assert "Compiled in " in capsys.readouterr().out
    assert main(["show", str(dump.path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["compile_time"]
    assert row["kernels"][0]["source"] == "tests/steps/timed_steps.py:28"
    assert row["cpu_seconds"] > 0


def test_a_dump_without_times_and_a_damaged_file(dump: Dump, tmp_path: Path) -> None:
    for path in dump.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / COMPILE_TIMES).write_text('{"schema_version": 1, "machine": 3}')
    with pytest.raises(DumpError, match="machine: expected text"):
        open_dump(tmp_path)
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


def test_an_unrolled_loop_is_the_cause_unless_one_kernel_takes_most(dump: Dump) -> None:
    copies = Copies(None, 300, 2_900, 3_000)
    times = replace(times_of(10.0), copies=copies, code_seconds=6.0)
    assert "2,900 of 3,000 operations are 300 copies" in largest_cause(times, dump.plan)
    kernels = (
        KernelSeconds("of_another_plan", 4.0, 1.9),
        KernelSeconds("fusion_2", 0.05, 0.05),
    )
    assert "kernel of_another_plan takes 5.9 s" in largest_cause(
        replace(times, kernels=kernels), dump.plan
    )
    assert largest_cause(times_of(10.0), dump.plan) == ""


def test_diff_states_both_compile_times(dump: Dump) -> None:
    opened = [
        replace(dump, compile_times=times)
        for times in (times_of(2.0), times_of(5.0), times_of(5.0, machine="another"), None)
    ]
    difference = compare_opened(opened[0], opened[1])
    assert difference.same
    assert "2.0 -> 5.0 s of CPU, 2.50 times" in difference.compile_time_text
    assert "not compared" in compare_opened(opened[0], opened[2]).compile_time_text
    assert compare_opened(opened[0], opened[3]).compile_time_text == ""


def test_what_is_not_profiled_is_timed() -> None:
    with timed_compile(profiled=False) as times:
        sum(range(200_000))
    assert times[0].stages["compile"].wall > 0
    assert (times[0].code_seconds, times[0].kernels) == (None, ())


def event(name: str, start: float, end: float, **numbers: int) -> Any:
    return compile_timeline._Event(name, start, end, SimpleNamespace(stats=list(numbers.items())))


def test_kernels_are_in_the_order_in_which_the_main_thread_scheduled_them() -> None:
    """Of the first, the main thread scheduled both tasks; of the second, a task its second."""
    main_thread = [event("T::Record", at, at, _p=at) for at in (1, 2, 3)]
    second = [
        event("T::StartRegion", 4, 4, _c=3),
        event("T::Record", 5, 5, _p=9),
        event("T::StopRegion", 6, 6),
        event("T::StartRegion", 7, 7, _c=9),
        event("CompileSingleModule", 8, 38e9),
        event("PTX->CUBIN", 9, 20e9),
    ]
    first = [event("T::StartRegion", 50, 50, _c=2), event("CompileSingleModule", 51, 9e9)]
    kernels = compile_timeline._kernels([second, first, main_thread])
    assert [round(kernel.seconds) for kernel in kernels] == [9, 38]
    assert [round(kernel.ptxas) for kernel in kernels] == [0, 20]


def test_passes_are_what_runs_directly_in_a_pipeline() -> None:
    events = [
        event("OptimizeHloModule", 0, 100e9),
        event("fusion (jit_step)", 0, 60e9),
        event("simplification (jit_step)", 1, 5e9),
        event("algsimp", 2, 4e9),
        event("config-assigner", 6e9, 50e9),
        event("inner (kernel)", 7e9, 20e9),
        event("algsimp", 8e9, 9e9),
        event("algsimp", 51e9, 52e9),
    ]
    passes = {item.name: round(item.seconds) for item in compile_timeline._passes(events)}
    assert passes == {"config-assigner": 44, "algsimp": 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code_seconds": 5}, "code_seconds: expected a part of the stage `compile`"),
        ({"stages": {"foo": {"wall": 1, "cpu": 1}}}, "expected trace, lower, compile, found 'foo'"),
        ({"stages": {"trace": {"wall": 0, "cpu": 0}}}, "expected more than 0 s in all"),
        ({"stages": {"compile": {"wall": 1e9, "cpu": 0}}}, "stages"),
    ],
)
def test_times_that_no_compile_takes(tmp_path: Path, change: Any, message: str) -> None:
    stage = {"wall": 2, "cpu": 2}
    times = {"schema_version": 1, "machine": "m", "stages": {"compile": stage}, "code_seconds": 1}
    (tmp_path / "compile_times.json").write_text(json.dumps(times))
    assert read_compile_times(tmp_path) is not None
    (tmp_path / "compile_times.json").write_text(json.dumps({**times, **change}))
    with pytest.raises(DumpError, match=rf"compile_times\.json: .*{message}"):
        read_compile_times(tmp_path)
