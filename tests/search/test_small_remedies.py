"""Small changes with large effects: outputs that nothing computes, constants, policies by name."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.folders import STEPS
from tests.shared.sample_records import planned, predicted
from xlapipe.cli.choose_table import choice_lines
from xlapipe.compile.lowering.changed_workload import changed_workload
from xlapipe.compile.lowering.forward_graph import ForwardValue, PolicyKey
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.errors import WorkloadError
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.search.candidate import Candidate, Recomputed, StepChange
from xlapipe.search.choosing.choose import Choice
from xlapipe.search.choosing.compiles import target_device
from xlapipe.search.choosing.rows import row_figures, scan_notes, with_chosen
from xlapipe.search.choosing.search import estimate
from xlapipe.search.rows import Row


def product(number: int, **facts: object) -> ForwardValue:
    dimensions = (((1,), (0,)), ((), ()))
    key = PolicyKey("dot_general", ((None, 8), (8, 8)), "float32", dimensions=dimensions)
    value = ForwardValue(
        number=number,
        key=key,
        shape=(1024, 8),
        dtype="float32",
        size_bytes=32768,
        operations=131072,
        touched_bytes=65792,
        inputs=(number - 1,) if number else (),
        needed=True,
        differentiated=True,
        source="step.py:1",
        loop=None,
        trips=1,
    )
    return replace(value, **facts)


def test_an_estimate_counts_what_is_kept_to_compute_others_again() -> None:
    values = [product(0), product(1, needed=False), product(2)]
    device = target_device("h200")
    all_again = estimate(values, Recomputed(numbers=frozenset({0, 1, 2}), parts=4), device)
    last_again = estimate(values, Recomputed(numbers=frozenset({2}), parts=4), device)
    assert all_again.freed_bytes == 2 * 32768 - 2 * 32768 / 4
    assert last_again.freed_bytes == 32768 - 32768 - 32768 / 4 and last_again.kept == {1}
    assert all_again.again_seconds == pytest.approx(3 * last_again.again_seconds)
    assert all_again.is_worse_than(replace(last_again, freed_bytes=all_again.freed_bytes))
    assert not all_again.is_worse_than(last_again)


def test_a_scan_states_how_long_it_and_the_loop_take_to_compile() -> None:
    candidate = Candidate(reference=WorkloadReference("w", "m:w", {}))
    scan = replace(candidate, change=StepChange("scan over 8", policy=PolicyChange(kind="loop")))
    times = {"lower": 1.0, "compile": 2.0}, {"lower": 0.5, "compile": 0.25}
    plans = [planned(seconds=seconds) for seconds in times]
    (note,) = scan_notes([Row(candidate, plans[0]), Row(scan, plans[1])])
    assert note.startswith("scan over 8: lowered and compiled in 0.8 s, as written in 3.0 s")


OFFLOADED = StepChange("offload a", policy=PolicyChange(source="'pinned_host'"))
WRITTEN = planned(temp_bytes=40, predicted=predicted(1e-3, 8e-4, 2e-3))


@pytest.mark.parametrize(
    ("change", "temp_bytes", "seconds", "host_bytes", "effect"),
    [
        (StepChange("XLA option a"), 40, 1e-3, 0, "changes nothing"),
        (StepChange("XLA option a"), 40, 0.9e-3, 0, ""),
        (StepChange("XLA option a"), 44, 1.1e-3, 0, "no smaller, and slower"),
        (StepChange("keep a"), 20, 1.1e-3, 0, ""),
        (OFFLOADED, 20, 1e-3, 0, "moves nothing to the host"),
        (OFFLOADED, 20, 1e-3, 8, ""),
        (OFFLOADED, 44, 3e-3, 8, "no smaller, and slower"),
        (StepChange("half batch", arguments={"halve": "batch"}), 40, 1e-3, 0, ""),
        (StepChange("two devices", several_devices=True), 40, 1e-3, 0, ""),
    ],
)
def test_a_row_says_that_its_change_has_no_effect_or_a_bad_one(
    change: StepChange, temp_bytes: int, seconds: float, host_bytes: int, effect: str
) -> None:
    time = predicted(seconds, seconds, seconds)
    changed = planned(temp_bytes=temp_bytes, predicted=time, host_bytes=host_bytes)
    base = Candidate(find_workload("step:train"), {}, "h200")
    rows = with_chosen([Row(base, WRITTEN, 0), Row(replace(base, change=change), changed, 1)])
    (own,) = [row for row in rows if row.candidate.change is not None]
    (written,) = [row for row in rows if row.candidate.change is None]
    assert (own.effect, written.effect) == (effect, "")
    assert row_figures(own)["effect"] == effect
    table = [line.plain for line in choice_lines(Choice(workload="a", maximise=None, rows=rows))]
    (line,) = [line for line in table if change.text in line]
    assert line.rstrip().endswith(f"{change.text}; {effect}" if effect else change.text)


@pytest.mark.jax
def test_outputs_that_nothing_computes_are_not_returned() -> None:
    reference = WorkloadReference("p", "replicated_steps:data_parallel", folder=STEPS)
    original = changed_workload(reference=reference.to_json())
    less = changed_workload(reference=reference.to_json(), unreturned=(0, 5))
    shapes = [jax.tree.leaves(jax.eval_shape(w.fn, *w.args)) for w in (original, less)]
    assert shapes[1] == shapes[0][1:5]
    assert shapes[0][0].dtype == jnp.float32


@pytest.mark.jax
def test_outputs_of_a_jitted_step_stay(tmp_path: Path) -> None:
    (tmp_path / "jitted_step.py").write_text(
        "import jax, xlapipe\n"
        "x = jax.ShapeDtypeStruct((8,), 'float32')\n"
        "workload = xlapipe.Workload(name='jitted', fn=jax.jit(lambda x: (x, x)), args=(x,))\n",
        encoding="utf-8",
    )
    reference = WorkloadReference("p", "jitted_step:workload", folder=tmp_path)
    with pytest.raises(WorkloadError, match="fix: return less in the step"):
        changed_workload(reference=reference.to_json(), unreturned=(0,))
