"""Leaves that all devices of an axis hold: which, what sharding them saves, and the row for it."""

import pytest

from tests.folders import STEPS
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.tuning import Tuned
from xlapipe.search.candidate import changed_job
from xlapipe.search.choosing.replicated import replicated

pytestmark = pytest.mark.jax


def test_optimizer_state_and_weights_are_sharded_over_the_axis_that_splits_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(STEPS)
    settings = CompileSettings(tuning=Tuned.NONE)
    (job,) = jobs_of(["replicated_steps:data_parallel"], settings)
    program = compile_dump(job, None).dump
    optimizer, weights = replicated(program)
    params_bytes = (256 * 1024 + 1024 * 128) * 4
    assert (optimizer.name, optimizer.axis, optimizer.saved_bytes) == (
        *("optimizer state", "data"),
        2 * params_bytes // 2,
    )
    assert (weights.name, weights.saved_bytes) == ("weights", params_bytes // 2)
    change = optimizer.change
    assert "momentum['a']['up'], momentum['b']['up']: PartitionSpec(None, 'data')" in change.code
    sharded = compile_dump(changed_job(job, change), None).dump
    saved_bytes = program.plan.totals.parameter_bytes - sharded.plan.totals.parameter_bytes
    assert saved_bytes == optimizer.saved_bytes
    assert [leaf.spec for leaf in sharded.arguments if leaf.path == "x"] == [("data",)]
