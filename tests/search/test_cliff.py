"""`xlapipe fit --cliff`: the size from which on XLA rematerialises, from constructed plans."""

from dataclasses import replace
from typing import Any

import pytest

from tests.search.test_fit_report import planned
from tests.shared.small_hlo import plan_of_text
from xlapipe.cli import main
from xlapipe.cli.fit_table import cliff_figures, cliff_lines
from xlapipe.devices.targets.device import device_of_target
from xlapipe.errors import XlapipeError
from xlapipe.registry import find_workload
from xlapipe.report.records import plain_data
from xlapipe.search.candidate import Candidate
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.recomputed import (
    RecomputedKernel,
    recomputed_kernels,
    rematerialised_names,
)
from xlapipe.search.rows import Row, SearchSettings
from xlapipe.search.sizing import cliff as cliffs
from xlapipe.search.sizing.cliff import Cliff, find_cliff
from xlapipe.time.cost import step_cost

KERNEL = RecomputedKernel(
    instruction="fusion.3.remat",
    op_name="jit(step)/tanh",
    source="step.py:9",
    value_bytes=1000,
    launches=2,
    floor_seconds=1e-6,
)


def memory_of(size: int, *, limited: bool) -> PlannedMemory:
    """1,000 bytes of temp per row; above 300,000 bytes XLA keeps half, if it has a limit."""
    if limited and size > 300:
        memory = planned(500 * size, rematerialised=2)
        return replace(memory, recomputed=(KERNEL,), floor_seconds=4e-6)
    return replace(planned(1000 * size), floor_seconds=3e-6)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that are compiled; compiles are replaced by `memory_of`."""
    sizes: list[int] = []

    def compile_size(workload: str, vary: str, size: int, search: SearchSettings) -> Row:
        sizes.append(size)
        candidate = Candidate(find_workload(workload), {vary: size})
        return Row(candidate, memory_of(size, limited=not search.compile.options))

    monkeypatch.setattr(cliffs, "compile_size", compile_size)
    return sizes


def found(**bounds: Any) -> Cliff:
    return find_cliff("m:step", "batch", search=SearchSettings(), **bounds)


def test_both_sides_are_found_with_few_compiles(compiled: list[int]) -> None:
    cliff = found()
    assert cliff.below is not None
    assert cliff.above is not None
    low, high = cliff.size(cliff.below), cliff.size(cliff.above)
    assert low <= 300 < high <= low * 1.01 + 1
    assert compiled[-1] == high
    assert len(compiled) <= 13


def test_the_larger_side_is_compiled_without_the_limit_too(compiled: list[int]) -> None:
    cliff = found(lower=50)
    assert [row and cliff.size(row) for row in (cliff.below, cliff.above)] == [300, 350]
    assert cliff.as_written is not None
    assert cliff.as_written.memory == memory_of(350, limited=False)
    assert cliff.saved_bytes == 350 * 500
    assert cliff.added_seconds == 1e-6


def test_the_distance_is_to_the_largest_plan_before_it(compiled: list[int]) -> None:
    cliff = found(lower=50)
    assert cliff.bytes_to_cliff(memory_of(100, limited=True)) == 200_000
    assert cliff.bytes_to_cliff(memory_of(350, limited=True)) == 0


def test_bounds_on_one_side_of_it(compiled: list[int]) -> None:
    assert found(upper=200).above is None
    cliff = found(lower=400, upper=500)
    assert (cliff.below, cliff.above and cliff.size(cliff.above)) == (None, 400)


def test_a_step_without_anything_to_rematerialise_ends_the_search(
    compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_written = memory_of
    monkeypatch.setitem(
        globals(), "memory_of", lambda size, limited: as_written(size, limited=False)
    )
    cliff = found()
    assert cliff.above is None
    assert cliff.as_written is None
    assert max(compiled) < 10_000


def test_text_and_json_have_the_same_figures(compiled: list[int]) -> None:
    cliff = found(lower=50)
    lines = [line.plain for line in cliff_lines("m:step", "h200", cliff)]
    assert lines[0] == "m:step on h200: XLA begins to rematerialise between batch=300 and batch=350"
    text = "\n".join(lines)
    assert "350 without a limit" in text
    assert "needs 750,008 B and does not fit; rematerialising saves 175,000 B" in text
    assert "1 kernel, at least 1.0 µs, 25.0% of the step's floor" in text
    assert "fusion.3.remat" in text
    figures = plain_data(cliff_figures(cliff))
    assert (figures["below"]["value"], figures["above"]["value"]) == (300, 350)
    assert (figures["saved_bytes"], figures["added_seconds"]) == (175_000, 1e-6)
    assert figures["above"]["bytes_to_cliff"] == 0
    assert figures["recomputed"][0]["source"] == "step.py:9"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--cliff", "a b"], "expected a parameter's name"),
        (["--cliff", "batch=8"], "expected a parameter's name"),
        (["--cliff", "batch=x..8"], "expected a parameter's name"),
        (["--cliff", "batch", "--vary", "batch=1"], "neither --vary nor --out"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "qwen3-decode", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_a_failed_compile_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(workload: str, *_: object) -> Row:
        return Row(Candidate(find_workload(workload)), XlapipeError("no"))

    monkeypatch.setattr(cliffs, "compile_size", failing)
    with pytest.raises(XlapipeError, match="no"):
        found()


REMAT = """HloModule remat, is_scheduled=true

ENTRY main {
  x = f32[1024]{0} parameter(0)
  a = f32[1024]{0} tanh(x), metadata={op_name="jit(f)/tanh" source_file="step.py" source_line=9}
  b = f32[1024]{0} negate(a)
  a.remat = f32[1024]{0} tanh(x), metadata={op_name="jit(f)/tanh" source_file="step.py"}
  a.remat2.1 = f32[1024]{0} bitcast(a.remat)
  ROOT sum = f32[1024]{0} add(b, a.remat2.1)
}
"""


def test_kernels_that_are_computed_again_have_their_floor() -> None:
    plan = plan_of_text(REMAT)
    assert rematerialised_names(plan) == ("a.remat", "a.remat2.1")
    (kernel,) = recomputed_kernels(plan, step_cost(plan, device_of_target("h200")))
    assert (kernel.instruction, kernel.value_bytes, kernel.launches) == ("a.remat", 4096, 1)
    assert kernel.floor_seconds is not None
    assert kernel.floor_seconds > 0
    assert recomputed_kernels(plan, None) == ()
