"""`choose --remat`: the printed code, pasted into the step, is what was compiled."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import xlapipe
from tests.folders import STEPS
from tests.steps import choose_steps
from xlapipe import XlapipeError
from xlapipe.compile.lowering.forward_graph import PolicyKey
from xlapipe.compile.lowering.forward_values import forward_graph
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.registry import find_workload
from xlapipe.search.candidate import Candidate, StepChange, job_of
from xlapipe.search.choosing.choose import Choice, choose
from xlapipe.search.choosing.rows import row_figures
from xlapipe.search.memory_budget import MemoryBudget, memory_budget
from xlapipe.search.planned_memory import planned_memory
from xlapipe.search.rows import SearchSettings

pytestmark = pytest.mark.jax

# What the printed comments tell the user to write.
PASTED = {
    "scan": (
        "jax.lax.scan(layer, x, params)",
        "jax.lax.scan(jax.checkpoint(layer, policy=policy, prevent_cse=False), x, params)",
    ),
    "linen block": (
        "@nn.compact\n    def __call__(self, x: jax.Array, _",
        "@checkpointed\n    @nn.compact\n    def __call__(self, x: jax.Array, _",
    ),
    "block": ("def layer(", "@checkpointed\ndef layer("),
    "gradient": ("jax.value_and_grad(loss)", "jax.value_and_grad(rematerialised(loss))"),
    "linen scan": (
        "            LinenBlock,",
        "            nn.remat(LinenBlock, policy=policy, prevent_cse=False),",
    ),
    "nnx": (
        "nnx.value_and_grad(nnx_loss)",
        "nnx.value_and_grad(nnx.remat(nnx_loss, policy=policy))",
    ),
    "nnx scan": (
        "nnx.scan(nnx_body,",
        "nnx.scan(nnx.remat(nnx_body, policy=policy, prevent_cse=False),",
    ),
}
OPTIONS = CompileSettings()
SIZES = {"scan": "batch=512", "block": "batch=2048, scan=False"}
# Compiles until a form takes less memory than the step as written.
COMPILES = {"scan": 3, "block": 7}
# On the CPU they let the additions of a sum depend on what is around it.
REORDERING_PASSES = "fusion,dot-library-rewriter"


def layer_line(text: str) -> int:
    lines = (STEPS / "choose_steps.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.startswith(text))


def pasted(module: str, code: str, place: str) -> str:
    """The source of a module of steps with the code that is printed for it."""
    source = (STEPS / f"{module}.py").read_text(encoding="utf-8")
    before, after = PASTED[place]
    assert source.count(before) == 1
    docstring, imports, rest = source.partition("\nimport jax\n")
    return f"{docstring}\n{code}{imports}{rest}".replace(before, after)


def compile_pasted(
    folder: Path, workload: str, rows: list[dict[str, Any]], place: str, printed: str = ""
) -> None:
    """Checks that the code of each row compiles to the plan of the row."""
    (folder / "pyproject.toml").write_text("[tool.xlapipe]\nuntuned = true\n")  # as of the rows
    module, _, call = workload.partition(":")
    for number, row in enumerate(rows):
        assert printed in row["code"]
        name = f"pasted_{place.replace(' ', '_')}_{number}"
        (folder / f"{name}.py").write_text(pasted(module, row["code"], place), encoding="utf-8")
        (found,) = xlapipe.choose(f"{name}:{call}")
        for figure in ("total_bytes", "temp_bytes", "predicted_step_seconds"):
            assert found[figure] == row[figure], (row["change"], figure)


@pytest.fixture(scope="module", params=["scan", pytest.param("block", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def choice(place: str) -> Choice:
    """What is found for scanned layers, or for layers in a Python loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        return choose(
            f"choose_steps:workload({SIZES[place]})",
            remat=True,
            compiles=COMPILES[place],
            search=SearchSettings(at_once=1),  # Which forms start depends on those that ended.
        )


def test_the_pasted_code_compiles_to_the_promised_plan(
    place: str, choice: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = list(map(row_figures, choice.rows))
    by_keys = [row for row in rows if "KEPT" in (row["code"] or "")]
    compile_pasted(tmp_path, f"choose_steps:workload({SIZES[place]})", by_keys[:1], place)
    assert by_keys


def test_a_policy_saves_memory_and_the_fastest_row_that_fits_is_chosen(
    choice: Choice,
) -> None:
    (written,) = [row for row in choice.rows if row.candidate.change is None]
    assert min(row.memory.total_bytes for row in choice.rows) < written.memory.total_bytes
    fastest = min(row.memory.predicted.step_seconds for row in choice.rows if row.memory.fits)
    assert [row.memory.predicted.step_seconds for row in choice.chosen] == [fastest]


def test_loss_and_gradients_are_equal_bit_for_bit(
    place: str, choice: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def outputs(name: str, source: str) -> list[np.ndarray[Any, Any]]:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        sizes = {"batch": 512} if place == "scan" else {"batch": 2048, "scan": False}
        workload = importlib.import_module(name).workload(**sizes)
        keys = iter(jax.random.split(jax.random.key(0), 3))
        args = jax.tree.map(lambda a: 0.05 * jax.random.normal(next(keys), a.shape), workload.args)
        lowered = jax.jit(workload.fn).lower(*args)
        step = lowered.compile(compiler_options={"xla_disable_hlo_passes": REORDERING_PASSES})
        return [np.asarray(leaf) for leaf in jax.tree.leaves(step(*args))]

    written = outputs(f"written_{place}", (STEPS / "choose_steps.py").read_text(encoding="utf-8"))
    codes = [row.candidate.change.code for row in choice.rows if row.candidate.change is not None]
    assert len(codes) == COMPILES[place] - 1 and "KEPT" in "".join(codes)
    for number, code in enumerate(codes[-2:]):
        changed = outputs(f"changed_{place}_{number}", pasted("choose_steps", code, place))
        for ours, theirs in zip(written, changed, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert np.abs(ours).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "place", "printed"),
    [
        pytest.param(
            *("linen_workload()", "linen block", "functools.partial(nn.remat, policy=policy)"),
            marks=pytest.mark.exhaustive,
        ),
        ("linen_workload(scan=True)", "linen scan", "nn.remat(body, policy=policy, prevent_cse"),
        pytest.param(
            *("nnx_workload()", "nnx", "nnx.value_and_grad(nnx.remat(…, policy=policy), …)"),
            marks=pytest.mark.exhaustive,
        ),
        ("nnx_workload(scan=True)", "nnx scan", "nnx.remat(body, policy=policy, prevent_cse"),
    ],
)
def test_the_code_for_a_library_compiles_to_the_promised_plan(
    workload: str, place: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    rows = xlapipe.choose(f"choose_library_steps:{workload}", remat=True, compiles=3, jobs=1)
    changed = [row for row in rows if row["code"]]
    assert len(changed) == 2 and "KEPT" in changed[0]["code"] + changed[1]["code"]
    monkeypatch.chdir(tmp_path)
    compile_pasted(tmp_path, f"choose_library_steps:{workload}", changed, place, printed)


@pytest.mark.parametrize("loss", [choose_steps.scanned_loss, choose_steps.unrolled_loss])
def test_the_forward_values_of_a_checkpoint_that_keeps_everything_are_those_without_it(
    loss: Callable[..., jax.Array],
) -> None:
    workload = choose_steps.workload(batch=8, width=4)
    everything = jax.checkpoint_policies.everything_saveable

    def kept(function: Callable[..., jax.Array]) -> set[PolicyKey]:
        traced = jax.jit(jax.value_and_grad(function)).trace(*workload.args)
        graph = forward_graph(traced.jaxpr)
        assert graph.names == ("hidden",)
        large = (value for value in graph.values if value.needed and value.size_bytes > 8 * 4)
        # Slices of arguments are not kept by a checkpoint, and carries are its arguments.
        keys = {value.key for value in large if value.key is not None}
        return {key for key in keys if key.primitive != "squeeze"}

    assert kept(jax.checkpoint(loss, policy=everything)) == kept(loss)


@pytest.mark.parametrize("place", ["scan", "checkpoint"])
def test_a_policy_that_is_applied_nowhere_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine of a cluster where the step is in another folder."""
    monkeypatch.chdir(STEPS)
    policy = PolicyChange(kind=place, source="policy = None", lines=("elsewhere.py:1",))
    change = StepChange("", policy=policy)
    job = job_of(Candidate(find_workload("choose_steps:workload"), change=change), OPTIONS)
    with pytest.raises(XlapipeError, match=r"no such call at .*; fix: "):
        planned_memory(job, MemoryBudget())


@pytest.mark.slow
def test_what_no_policy_makes_fit_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STEPS)
    choice = choose(
        "choose_steps:workload(scan=False, layers=2)",
        remat=True,
        search=SearchSettings(memory=memory_budget(1000)),
        compiles=2,
    )
    (found,) = choice.notes
    line = layer_line("def layer(")
    assert f"2 × layer (choose_steps.py:{line})" in found
    assert not choice.chosen and choice.left_out > 0
