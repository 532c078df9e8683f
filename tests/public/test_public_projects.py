"""Steps of public projects: their plans agree with a compile by jax alone.

The projects are installed into a folder of their own below build/, which later runs use again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.public.compiled_steps import (
    KINDS,
    ROOT,
    CompiledSteps,
    PackagesMissingError,
    compile_steps,
    install_packages,
    steps,
)
from tests.public.record import PAGE, page
from tests.zoo.batch import compile_batch
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.registry import WorkloadReference

# diffrax checks its own errors through callbacks.
CALLBACKS = {"diffrax_checked": 2}

PROJECTS = (
    *("blackjax", "brax", "diffrax", "e3nn", "equinox", "flowjax", "haiku", "jax", "jaxopt"),
    *(
        "jraph",
        "keras",
        "linen",
        "lineax",
        "maxtext",
        "mctx",
        "nnx",
        "numpyro",
        "optax",
        "optimistix",
        "penzai",
    ),
    *("qwix", "tunix"),
)

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]


# Steps of `refused_steps.py`: parts of the message, and the step above that follows its fix.
REFUSED = {
    "keras_train_function": (
        "takes an iterator of batches",
        "fix: give jax.jit(model.train_step, donate_argnums=0)",
        "keras_train_step",
    ),
    "nnx_train_without_jit": ("model.bias.value", "fix: give nnx.jit(fn)", "nnx_linear"),
    "penzai_stateful_trainer": ("returns nothing", "fix: pass the state as an argument", None),
    "brax_training_epoch": ("is under jax.pmap", "fix: the equivalent is fn=jax.shard_map(", None),
    "equinox_pmapped": ("is under jax.pmap", "fix: the equivalent is fn=jax.shard_map(", None),
    "orbax_metadata": ("argument state['w']", "fix: jax.tree.map(lambda leaf", None),
}


@pytest.fixture(scope="module")
def compiled(
    jaxlib_version: str, golden_jaxlib: str, tmp_path_factory: pytest.TempPathFactory
) -> CompiledSteps:
    if jaxlib_version != golden_jaxlib:
        pytest.skip(f"the projects are pinned to versions for jax {golden_jaxlib}")
    try:
        return compile_steps(tmp_path_factory.mktemp("public"))
    except PackagesMissingError as error:
        pytest.skip(f"the package index does not give the projects: {error}")


def test_each_project_has_steps() -> None:
    assert len(steps()) >= 70
    for project in PROJECTS:
        assert any(step.startswith(f"{project}_") for step in steps()), project


@pytest.mark.parametrize("step", steps())
def test_plan_agrees_with_jax_alone(step: str, compiled: CompiledSteps) -> None:
    dump, totals = compiled.dump(step), compiled.totals(step)
    assert totals == compiled.alone[step]
    analysis = dump.manifest.memory_analysis
    assert totals == {kind: analysis[f"{kind}_bytes"] for kind in KINDS}
    assert dump.plan.notes == ()  # every section was read
    assert len(dump.plan.host_callbacks) == CALLBACKS.get(step, 0)
    for leaf in dump.manifest.arguments:
        if leaf.parameter_number is not None:
            allocation = dump.plan.parameter_allocation(leaf.parameter_number)
            assert allocation is not None, leaf.path
            assert leaf.size_bytes == allocation.size_bytes, leaf.path


@pytest.fixture(scope="module")
def refused(compiled: CompiledSteps, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the child gave for each step that is refused."""
    del compiled  # it installs the projects, or skips
    folder = tmp_path_factory.mktemp("refused")
    references = [
        WorkloadReference(step, "refused_steps:of", {"step": step}, Path(__file__).parent)
        for step in REFUSED
    ]
    compile_batch(references, folder, packages=install_packages(), more_paths=[ROOT])
    return {
        step: json.loads((folder / step / "result.json").read_text(encoding="utf-8"))
        for step in REFUSED
    }


@pytest.mark.parametrize("step", REFUSED)
def test_steps_that_are_rightly_refused(step: str, refused: Mapping[str, Any]) -> None:
    place, fix, fixed = REFUSED[step]
    assert fixed is None or fixed in steps()
    error = refused[step]["error"]
    assert error["type"] == "", error  # an error of xlapipe, not of jax or of the project
    assert place in error["message"]
    assert fix in error["message"]


def test_donated_leaves_are_updated_in_place(compiled: CompiledSteps) -> None:
    """Steps that donate all of a model and of its optimizer's state keep nothing twice."""
    for step in ("optax_adamw", "equinox_mlp", "haiku_train", "numpyro_svi", "tunix_train"):
        plan = compiled.dump(step).plan
        assert plan.aliases, step
        assert plan.spaces[MemorySpace.HBM].aliased_bytes == compiled.alone[step]["alias"]


def test_names_are_the_users(compiled: CompiledSteps) -> None:
    paths = {leaf.path for leaf in compiled.dump("equinox_mlp").manifest.arguments}
    assert "model.layers[0].weight" in paths
    paths = {leaf.path for leaf in compiled.dump("tunix_train").manifest.arguments}
    assert any("layers.0.mlp.gate_proj.kernel" in path for path in paths), sorted(paths)[:8]


@pytest.mark.parametrize("step", ["equinox_mlp", "nnx_linear", "haiku_train"])
def test_source_lines_are_the_users(step: str, compiled: CompiledSteps) -> None:
    module = compiled.dump(step).plan.module
    assert module is not None
    files = {
        instruction.source.file
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.source is not None
    }
    assert files
    assert all(file.startswith("steps/") for file in files), files


def test_the_page_holds_these_totals(compiled: CompiledSteps) -> None:
    """If it does not: `python -m tests.public.record`."""
    assert PAGE.read_text(encoding="utf-8") == page(compiled)
