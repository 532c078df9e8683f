"""Remedies of `xlapipe choose`: the changes that it compiles, and what they save."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import STEPS
from tests.shared.programs import with_facts
from xlapipe.compile.lowering.changed_workload import changed_workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.errors import WorkloadError
from xlapipe.inductor.open_path import open_path
from xlapipe.plans.donatable import argument_name, donatable
from xlapipe.plans.program import Program
from xlapipe.registry import WorkloadReference
from xlapipe.search.candidate import StepChange
from xlapipe.search.choosing import remedies
from xlapipe.search.choosing.choose import choose
from xlapipe.search.choosing.remedies import changes_of, donation_of, largest_argument

pytestmark = pytest.mark.jax

REFERENCE = WorkloadReference("hungry", "hungry_step:hungry", folder=STEPS)


def changed(**change: object) -> str:
    """The traced program of the changed step."""
    workload = changed_workload(reference=REFERENCE.to_json(), **change)  # type: ignore[arg-type]
    return str(jax.make_jaxpr(workload.fn)(*workload.args))


def specs_of(**change: object) -> list[PartitionSpec]:
    workload = changed_workload(reference=REFERENCE.to_json(), **change)  # type: ignore[arg-type]
    assert workload.mesh == {"shard": 2}
    return list(jax.tree.leaves(workload.in_specs, is_leaf=lambda x: isinstance(x, PartitionSpec)))


def test_the_dimensions_that_hold_the_batch_are_sharded() -> None:
    assert specs_of(shard_size="batch") == [PartitionSpec()] * 4 + [PartitionSpec("shard")]
    with pytest.raises(WorkloadError, match="integer `tokens`"):
        specs_of(shard_size="tokens")


def test_an_argument_is_sharded_along_the_given_axes() -> None:
    specs = specs_of(shard_leaves={"params[1].value": 1, "x": 0})
    assert specs[1:3] == [PartitionSpec(None, "shard"), PartitionSpec()]
    with pytest.raises(WorkloadError, match="leaves to shard"):
        specs_of(shard_leaves={"elsewhere['k']": 0})
    with pytest.raises(WorkloadError, match="its arguments is divisible by 2; fix:"):
        specs_of(shard_leaves={})


def test_the_largest_argument_and_its_axes(goldens: Path) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}")
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
        "sharded", "small_sharded:sharded", arguments={"devices": 2}, folder=STEPS
    )
    workload = changed_workload(reference=reference.to_json(), more_devices=4)
    assert workload.mesh == {"data": 4}
    with pytest.raises(WorkloadError, match="no integer argument `devices`; fix:"):
        changed_workload(reference=REFERENCE.to_json(), more_devices=4)


def test_a_size_is_halved() -> None:
    assert "f32[2048,64]" in changed(halve="batch")
    with pytest.raises(WorkloadError, match=r"integer `rows` .*; fix:"):
        changed(halve="rows")


def test_names_are_donated() -> None:
    workload = changed_workload(reference=REFERENCE.to_json(), donate=("params",))
    assert workload.donated_names == ("params",)


def test_a_jitted_step_is_jitted_again_to_donate() -> None:
    for jitted in ("jitted", "nnx_jitted"):
        reference = WorkloadReference(jitted, f"jitted_steps:{jitted}", folder=STEPS)
        workload = changed_workload(reference=reference.to_json(), donate=("weight",))
        step: Any = workload.fn
        leaves = jax.tree.leaves(step.lower(*workload.args).args_info)
        assert [leaf.donated for leaf in leaves] == [True, False]


@pytest.mark.parametrize("name", ["with_options", "nnx_with_options"])
def test_a_jitted_step_that_donates_keeps_what_its_jit_says(name: str) -> None:
    reference = WorkloadReference(name, f"jitted_steps:{name}", folder=STEPS)
    workload = changed_workload(reference=reference.to_json(), donate=("weight",))
    program = lower(workload, target_named("h200").config_text)
    facts = [(leaf.path, leaf.donated, leaf.parameter_number) for leaf in program.arguments]
    assert facts == [("weight", True, 0), ("x", False, 1)]
    assert len(program.options) == (name == "with_options")


@pytest.mark.parametrize("name", ["on_a_device", "without_graph"])
def test_a_jit_that_cannot_be_repeated_is_left_alone(name: str) -> None:
    reference = WorkloadReference(name, f"jitted_steps:{name}", folder=STEPS)
    with pytest.raises(WorkloadError, match=r"fix: donate weight in its own jit"):
        changed_workload(reference=reference.to_json(), donate=("weight",))


def test_only_arguments_that_fit_an_output_are_donated(goldens: Path) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}")
    assert [row.name for row in donatable(program)] == ["x"]
    assert program.facts.call is not None
    gradients = tuple(output.path for output in program.outputs)
    alone = with_facts(program, call=replace(program.facts.call, gradients=gradients))
    assert donatable(alone) == ()
    donated = open_path(goldens / f"qwen3-step-donated/h200-cublas-jax{GOLDEN_JAXLIB}")
    assert donatable(donated) == ()


def test_little_is_not_donated_and_what_is_donated_already_is_printed(
    goldens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}")
    others = [replace(leaf, donated=leaf.path != "x") for leaf in program.arguments]
    names = ("x", *dict.fromkeys(argument_name(leaf.path) for leaf in others if leaf.donated))
    change, size_bytes = donation_of(with_facts(program, arguments=tuple(others))) or (None, 0)
    assert change is not None and sorted(change.arguments["donate"]) == sorted(names)
    assert change.text == f"donate x (donate_argnames={change.arguments['donate']!r})"
    monkeypatch.setattr(
        remedies, "_LEAST_DONATED", 2 * size_bytes / program.plan.totals.total_allocation_bytes
    )
    assert donation_of(program) is None


def test_the_changes_of_a_program(goldens: Path) -> None:
    program = open_path(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}")
    (job,) = jobs_of(["spectral-diffusion(batch=4)"], CompileSettings())
    texts = [change.text for change in changes_of(program, job)]
    assert texts[0] == "donate x (donate_argnames=('x',))"
    assert "batch=2" in texts
    assert "shard batch over 2 devices" in texts
    over_four = Program(program.plan, replace(program.manifest, mesh={"data": 4}))
    several = [change.text for change in changes_of(over_four, job)]
    assert "8 devices instead of 4" in several


@pytest.mark.slow
def test_sharding_and_policies_save_what_their_compile_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(STEPS)

    def one_change(*arguments: Any) -> list[StepChange]:
        changes = changes_of(*arguments)
        return [change for change in changes if change.text.startswith("shard batch")]

    monkeypatch.setattr("xlapipe.search.choosing.choose.changes_of", one_change)
    choice = choose("hungry_step:attention", remedies=True)
    assert not choice.failed
    saved_bytes = {row.candidate.change_text: row.saved_bytes or 0 for row in choice.rows}
    probabilities = 2 * 512 * 512 * 4
    # Half of the scores and probabilities.
    assert saved_bytes["shard batch over 2 devices"] >= 4 * probabilities
    kept = [change for change in saved_bytes if change.startswith("keep dot_general")]
    assert kept and all(saved_bytes[change] >= 4 * probabilities for change in kept)
    assert "keep matrix products (whole gradient)" in saved_bytes


@pytest.mark.exhaustive
def test_remedies_save_what_their_compile_says(
    monkeypatch: pytest.MonkeyPatch, jaxlib_version: str
) -> None:
    monkeypatch.chdir(STEPS)
    choice = choose("hungry_step:hungry", remedies=True)
    saved = {
        row.candidate.change_text.partition(" (")[0]: row.saved_bytes or 0 for row in choice.rows
    }
    assert max(saved, key=lambda change: saved[change]) == "half batch"
    assert saved["half batch"] > saved["shard batch over 2 devices"] > saved["donate params"]
    # XLA reuses the memory of two of the four weights anyway, and before 0.12 of one.
    is_old = jaxlib_version.startswith(("0.10.", "0.11."))
    assert saved["donate params"] == (3 if is_old else 2) * 64 * 64 * 4
