"""`xlapipe explain --workload`: the changes that it compiles, and what they save."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main
from xlapipe.compile.lowering.changed_workload import changed_workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.lowering.rematerialised import rematerialising, stop_rematerialising
from xlapipe.compile.lowering.saved_values import checkpointed_but_largest
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.tuning import Tuned
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.opened import Opened
from xlapipe.errors import WorkloadError
from xlapipe.inductor.open_path import open_path
from xlapipe.plans.donatable import donatable
from xlapipe.plans.made_together import made_together
from xlapipe.registry import WorkloadReference
from xlapipe.report.overview.overview import Overview
from xlapipe.report.overview.overview_lines import overview_lines
from xlapipe.search.sizing.remedies import (
    Change,
    Limit,
    changes_of,
    largest_argument,
    try_changes,
)

FOLDER = Path(__file__).parent
REFERENCE = WorkloadReference("hungry", "hungry_step:hungry", folder=FOLDER)
ATTENTION = WorkloadReference("attention", "hungry_step:attention", folder=FOLDER)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    stop_rematerialising()


def changed(reference: WorkloadReference = REFERENCE, **change: object) -> str:
    """The traced program of the changed step."""
    workload = changed_workload(reference=reference.to_json(), **change)  # type: ignore[arg-type]
    program = str(jax.make_jaxpr(workload.fn)(*workload.args))
    stop_rematerialising()
    return program


def test_a_differentiated_function_is_rematerialised() -> None:
    assert "remat" not in changed()
    assert "nothing_saveable" in changed(checkpoint="nothing_saveable")
    assert "policy=" in changed(checkpoint="dots_saveable")
    assert "f32<host>[4096,64]" in changed(checkpoint="offload")
    assert "remat" not in changed()  # jax.value_and_grad is as before


def test_a_function_imported_from_jax_is_rematerialised_too() -> None:
    assert "remat" not in changed(ATTENTION)
    assert "nothing_saveable" in changed(ATTENTION, checkpoint="nothing_saveable")


def test_only_the_largest_saved_values_are_rematerialised(tmp_path: Path) -> None:
    note = tmp_path / "note"
    program = changed(ATTENTION, checkpoint="largest", note=str(note))
    assert "policy=" in program
    value = "4 values of float32[2,512,512] from div"
    assert note.read_text().startswith(value)
    assert note.read_text().endswith("hungry_step.py:42), 8,388,608 B")


@pytest.mark.slow
def test_a_jitted_step_of_nnx_computes_the_same() -> None:
    """Its wrapper keeps track of updates, and its gradient may be traced only once."""
    x = jnp.linspace(-1.0, 1.0, 64).reshape(16, 4)

    def trained() -> list[jax.Array]:
        model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

        @nnx.jit
        def step(model: nnx.Linear, optimizer: Any, x: jax.Array) -> jax.Array:
            def loss(model: nnx.Linear) -> jax.Array:
                return jnp.sum(jnp.sin(jnp.exp(model(x))))

            value, gradients = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradients)
            return jnp.asarray(value)

        return [step(model, optimizer, x), *jax.tree.leaves(nnx.state(model))]

    expected = trained()
    for policy in ("nothing_saveable", "largest"):
        with rematerialising(policy):
            values = trained()
        for value, right in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-5)


def saved_bytes(function: Any, *arguments: Any) -> int:
    """Bytes that a gradient's forward pass saves, arguments included."""
    program: Any = jax.make_jaxpr(lambda *values: jax.vjp(function, *values)[1])(*arguments)
    return sum({id(v): v.aval.size * v.aval.dtype.itemsize for v in program.jaxpr.outvars}.values())


def test_the_policy_leaves_out_its_group_alone() -> None:
    def squares(x: jax.Array) -> jax.Array:
        y = jnp.exp(x[:, None] + x[None, :])  # 64 times as large as x
        return jnp.sum(jnp.sin(y[0]) * y[1])

    def in_a_loop(x: jax.Array) -> jax.Array:
        last, _ = jax.lax.scan(lambda y, _: (jnp.sin(jnp.exp(y)), None), x, length=8)
        return last.sum()

    x = jax.ShapeDtypeStruct((64,), jnp.float32)
    for function in (squares, in_a_loop):
        policy, group = checkpointed_but_largest(function, x, has_aux=False)
        left_bytes = saved_bytes(jax.checkpoint(function, policy=policy), x)
        less_bytes = saved_bytes(function, x) - left_bytes
        assert 0 < less_bytes <= 1.25 * group.size_bytes


def test_nothing_to_rematerialise_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="no saved value can be computed again"):
        checkpointed_but_largest(jnp.sum, jax.ShapeDtypeStruct((8,), jnp.float32), has_aux=False)


def specs_of(**change: object) -> list[PartitionSpec]:
    workload = changed_workload(reference=REFERENCE.to_json(), **change)  # type: ignore[arg-type]
    assert workload.mesh == {"shard": 2}
    return list(jax.tree.leaves(workload.in_specs, is_leaf=lambda x: isinstance(x, PartitionSpec)))


def test_the_dimensions_that_hold_the_batch_are_sharded() -> None:
    assert specs_of(shard_size="batch") == [PartitionSpec()] * 4 + [PartitionSpec("shard")]
    with pytest.raises(WorkloadError, match="expected an integer `tokens` of 2 or more"):
        specs_of(shard_size="tokens")


def test_an_argument_is_sharded_along_the_given_axes() -> None:
    specs = specs_of(shard_leaves={"params[1].value": 1, "x": 0})
    assert specs[1:3] == [PartitionSpec(None, "shard"), PartitionSpec()]
    with pytest.raises(WorkloadError, match="1 of 1 leaves to shard are not among its arguments"):
        specs_of(shard_leaves={"elsewhere['k']": 0})
    with pytest.raises(WorkloadError, match="its arguments is divisible by 2; fix:"):
        specs_of(shard_leaves={})


def test_the_largest_argument_and_its_axes(goldens: Path) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}").program
    name, axes = largest_argument(program)
    sizes = {leaf.path.partition("[")[0].partition(".")[0]: 0 for leaf in program.arguments}
    for leaf in program.arguments:
        sizes[leaf.path.partition("[")[0].partition(".")[0]] += leaf.size_bytes
    assert sizes[name] == max(sizes.values())
    shapes = {leaf.path: leaf.shape for leaf in program.arguments}
    for path, axis in axes.items():
        shape = shapes[path]
        assert shape[axis] == max(size for size in shape if size % 2 == 0)


def test_more_devices_replace_the_workloads_own() -> None:
    reference = WorkloadReference(
        "sharded", "small_sharded:sharded", arguments={"devices": 2}, folder=FOLDER
    )
    workload = changed_workload(reference=reference.to_json(), more_devices=4)
    assert workload.mesh == {"data": 4}
    with pytest.raises(WorkloadError, match="no integer argument `devices`; fix:"):
        changed_workload(reference=REFERENCE.to_json(), more_devices=4)


def test_a_size_is_halved() -> None:
    assert "f32[2048,64]" in changed(halve="batch")
    with pytest.raises(
        WorkloadError, match="expected an integer `rows` of 2 or more, found None; fix:"
    ):
        changed(halve="rows")


def test_names_are_donated() -> None:
    workload = changed_workload(reference=REFERENCE.to_json(), donate=("params",))
    assert workload.donated_names == ("params",)


def test_a_jitted_step_is_jitted_again_to_donate() -> None:
    for jitted in ("jitted", "nnx_jitted"):
        reference = WorkloadReference(jitted, f"jitted_steps:{jitted}", folder=FOLDER)
        workload = changed_workload(reference=reference.to_json(), donate=("weight",))
        step: Any = workload.fn
        leaves = jax.tree.leaves(step.lower(*workload.args).args_info)
        assert [leaf.donated for leaf in leaves] == [True, False]


@pytest.mark.parametrize("name", ["with_options", "nnx_with_options"])
def test_a_jitted_step_that_donates_keeps_what_its_jit_says(name: str) -> None:
    reference = WorkloadReference(name, f"jitted_steps:{name}", folder=FOLDER)
    workload = changed_workload(reference=reference.to_json(), donate=("weight",))
    program = lower(workload, target_named("h200").config_text)
    facts = [(leaf.path, leaf.donated, leaf.parameter_number) for leaf in program.arguments]
    assert facts == [("weight", True, 0), ("x", False, 1)]
    assert len(program.options) == (name == "with_options")


@pytest.mark.parametrize("name", ["on_a_device", "without_graph"])
def test_a_jit_that_cannot_be_repeated_is_left_alone(name: str) -> None:
    reference = WorkloadReference(name, f"jitted_steps:{name}", folder=FOLDER)
    with pytest.raises(WorkloadError, match=r"fix: donate weight in its own jit"):
        changed_workload(reference=reference.to_json(), donate=("weight",))


def test_only_arguments_that_fit_an_output_are_donated(goldens: Path) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}").program
    assert [row.name for row in donatable(program)] == ["x"]
    donated = open_path(goldens / f"qwen3-step-donated/h200-cublas-jax{GOLDEN_JAXLIB}").program
    assert donatable(donated) == ()


@pytest.mark.parametrize(
    ("step", "name"), [("joined_fills", "copy_fusion"), ("joined_siblings", "multi_output_fusion")]
)
def test_a_pass_that_makes_values_long_before_their_use_is_left_out(
    step: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    (job,) = jobs_of([f"hungry_step:{step}"], CompileSettings(tuning=Tuned.NONE))
    compiled = compile_dump(job, None)
    (made,) = made_together(compiled.dump.plan)
    assert made.values > 1 and made.joined_by == name
    overview = Overview(Opened.of_dump(compiled.dump))
    screen = "\n".join(str(line) for line in overview_lines(overview, "dump", width=500))
    assert "Made long before use" in screen and f"xla_disable_hlo_passes={name}" in screen
    (change,) = [c for c in changes_of(compiled.dump.program, job) if "hlo_passes" in c.text]
    without = compile_dump(replace(job, options={**job.options, **change.options}), None)
    freed_bytes = compiled.dump.plan.totals.temp_bytes - without.dump.plan.totals.temp_bytes
    assert freed_bytes > made.size_bytes // 3
    assert made_together(without.dump.plan) == ()


def test_the_changes_of_a_program(goldens: Path) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}").program
    (job,) = jobs_of(["spectral-diffusion(batch=4)"], CompileSettings())
    texts = [change.text for change in changes_of(program, job)]
    assert texts[0] == "donate x (donate_argnames=('x',))"
    assert "batch=2" in texts
    assert "shard batch over 2 devices" in texts
    several = [change.text for change in changes_of(program, job, device_count=4)]
    assert "8 devices instead of 4" in several


@pytest.mark.exhaustive
def test_sharding_and_one_kind_of_value_save_what_their_compile_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(FOLDER)
    (job,) = jobs_of(["hungry_step:attention"], CompileSettings())
    dump = compile_dump(job, None).dump
    wanted = ("rematerialise only the largest", "shard batch")

    def two_changes(*arguments: Any, **options: Any) -> list[Change]:
        changes = changes_of(*arguments, **options)
        return [change for change in changes if change.text.startswith(wanted)]

    monkeypatch.setattr("xlapipe.search.sizing.remedies.changes_of", two_changes)
    tried = try_changes(job, dump, Limit(None), at_once=2)
    assert not tried.failed
    sharded, rematerialised = tried.remedies
    assert sharded.change == "shard batch over 2 devices"
    assert rematerialised.change.startswith(
        "rematerialise only the largest saved values: 4 values of float32[2,512,512]"
    )
    probabilities = 2 * 512 * 512 * 4
    assert rematerialised.saved_bytes >= 4 * probabilities
    assert sharded.saved_bytes >= 4 * probabilities  # half of the scores and probabilities


@pytest.mark.exhaustive
def test_remedies_save_what_their_compile_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.00MiB. "
        "[executable_name='jit_step']\n"
    )
    monkeypatch.chdir(FOLDER)
    assert main(["explain", str(log), "--workload", "hungry_step:hungry", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["plan"]["allocation"]["size_bytes"] == 5 * 2**20
    saved = {remedy["change"].partition(" (")[0]: remedy["bytes"] for remedy in printed["remedies"]}
    assert next(iter(saved)) == "half batch"
    assert saved["half batch"] > saved["shard batch over 2 devices"] > saved["donate params"]
    assert (
        saved["donate params"] == 3 * 64 * 64 * 4
    )  # XLA reuses memory of the fourth weight anyway
