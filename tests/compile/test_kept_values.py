"""What a step keeps for its backward pass: recorded by name, and checked in the plan."""

from dataclasses import replace

import jax
import pytest

from tests.folders import STEPS
from tests.shared.programs import with_facts
from tests.steps import choose_steps
from xlapipe.compile.lowering.forward_values import named_values
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.dump.manifest import Manifest
from xlapipe.expect import Expectation, NotSaved, Offloaded, Saved
from xlapipe.plans.program import KeptIn, Program
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

LAYERS, ROWS, WIDTH = 2, 512, 1024
KEPT_BYTES = LAYERS * ROWS * WIDTH * 4


def compiled(scan: bool) -> Program:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        reference = find_workload(f"choose_steps:named_workload(scan={scan})")
        (job,) = jobs_of([reference], CompileSettings(target="h200"))
        dump = compile_dump(job, None).dump
    manifest = Manifest.from_json(dump.manifest.to_json(), where="manifest")
    assert manifest.named_values == dump.manifest.named_values != ()
    return dump


@pytest.fixture(scope="module")
def scanned() -> Program:
    return compiled(scan=True)


@pytest.fixture(scope="module")
def unrolled() -> Program:
    return compiled(scan=False)


def failure(expectation: Expectation, program: Program) -> str:
    """What was found instead; empty if it holds."""
    return "; ".join(violation.found for violation in expectation.check(program).violations)


def test_values_of_a_scan_are_saved_and_offloaded_as_the_policy_has_it(scanned: Program) -> None:
    assert failure(Saved("up"), scanned) == ""
    assert Saved("up").check(scanned).measured == f"{KEPT_BYTES:,} B"
    assert failure(Offloaded("hidden"), scanned) == ""
    assert Offloaded("hidden").check(scanned).measured == f"{KEPT_BYTES:,} B in host memory"
    assert failure(NotSaved("attn"), scanned) == ""


def test_each_contrary_expectation_fails_and_states_what_is_kept(scanned: Program) -> None:
    assert "offloads it to the host" in failure(Saved("hidden"), scanned)
    assert "computes it again" in failure(Saved("attn"), scanned)
    kept = f"{KEPT_BYTES:,} B of 1 value are kept in "
    assert failure(NotSaved("up"), scanned) == f"{kept}device memory"
    assert failure(NotSaved("hidden"), scanned) == f"{kept}host memory"
    assert failure(Offloaded("up"), scanned) == "it is kept on the device"
    assert "computes it again" in failure(Offloaded("attn"), scanned)
    (violation,) = NotSaved("up").check(scanned).violations
    assert violation.source is not None and violation.source.file.endswith("choose_steps.py")
    for expectation in (Saved("atn"), NotSaved("atn")):
        assert failure(expectation, scanned) == "the step names up, hidden, attn"
    # A name of neither a leaf nor a value.
    assert "the program has" in failure(Offloaded("atn"), scanned)


def test_what_xla_leaves_on_the_device_until_the_backward_pass_is_not_offloaded(
    unrolled: Program,
) -> None:
    found = failure(Offloaded("hidden"), unrolled)
    assert "offloads 2 values; of this size the plan has 0 in host memory and" in found
    assert failure(NotSaved("hidden"), unrolled).endswith("are kept in device memory")


def test_a_value_that_jax_keeps_and_the_plan_lacks_is_not_saved(scanned: Program) -> None:
    (up,) = scanned.values_named("up")
    absent = replace(up, shape=(7, 11), size_bytes=7 * 11 * LAYERS * 4)
    program = with_facts(scanned, named_values=(absent,))
    assert "jax keeps 1 value, and the plan has 0 of this size" in failure(Saved("up"), program)
    assert failure(NotSaved("up"), program) == ""
    unranged = replace(program, plan=replace(program.plan, live_ranges=None))
    for expectation in (Saved("up"), NotSaved("up")):
        assert failure(expectation, unranged) == "the dump has none"
    assert failure(Saved("up"), with_facts(program, named_values=())) == (
        "the dump records no named value"
    )


@pytest.mark.parametrize(("microbatches", "rows"), [(1, ROWS), (4, ROWS // 4)])
def test_a_loop_of_both_passes_keeps_one_iteration(microbatches: int, rows: int) -> None:
    workload = choose_steps.named_workload(offload=False, microbatches=microbatches)
    values = {v.name: v for v in named_values(jax.jit(workload.fn).trace(*workload.args).jaxpr)}
    hidden = values["hidden"]
    assert (hidden.shape, hidden.trips, hidden.count) == ((rows, WIDTH), LAYERS, 1)
    assert hidden.kept is KeptIn.DEVICE
    assert hidden.size_bytes == rows * WIDTH * LAYERS * 4
