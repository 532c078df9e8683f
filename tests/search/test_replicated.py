"""Leaves that all devices of an axis hold: which, what sharding them saves, and the row for it."""

from dataclasses import replace

import jax
import pytest
from jax.sharding import PartitionSpec

from tests.folders import STEPS
from tests.steps.replicated_steps import data_parallel
from xlapipe.compile.lowering.changed_workload import axes_by_number, resharded, sharded
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.tuning import Tuned
from xlapipe.errors import WorkloadError
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


def test_outputs_are_sharded_as_the_arguments_that_they_replace() -> None:
    whole, split = PartitionSpec(), PartitionSpec("data")
    written = replace(data_parallel(), out_specs=(whole, whole))
    numbers = axes_by_number(written, {"momentum['b']['up']": ("data",)})
    carried = {"params": "out[0]", "momentum": "out[1]"}
    changed = resharded(written, numbers, carried)
    same = {"down": whole, "up": whole}
    momentum = {"a": same, "b": {**same, "up": split}}
    assert changed.in_specs == (same, momentum, split)
    assert changed.out_specs == (whole, momentum)
    assert resharded(data_parallel(), numbers, carried).out_specs is None
    with pytest.raises(WorkloadError, match=r"no one spec for out\[1\]"):
        resharded(replace(written, out_specs=whole), numbers, carried)


def test_an_argument_by_keyword_is_not_sharded_from_outside() -> None:
    named = replace(data_parallel(), args=(), kwargs={"x": jax.ShapeDtypeStruct((8,), "float32")})
    with pytest.raises(WorkloadError, match="arguments by keyword get no in_specs"):
        sharded(replace(named, mesh=None, in_specs=None), axes_by_number(named, {"x": 0}), 2)
