"""`choose --remat`: the printed code, pasted into the step, is what was compiled."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

import xlapipe
from tests.cpu import choose_steps
from xlapipe import XlapipeError
from xlapipe.choosing.choose import Changes, Choice, choose
from xlapipe.lowering.forward_graph import PolicyKey
from xlapipe.lowering.forward_values import forward_graph

FOLDER = Path(__file__).parent
STEPS = (FOLDER / "choose_steps.py").read_text(encoding="utf-8")
# What the printed comments tell the user to write.
PASTED = {
    "scan": (
        "jax.lax.scan(layer, x, params)",
        "jax.lax.scan(jax.checkpoint(layer, policy=policy, prevent_cse=False), x, params)",
    ),
    "nnx": (
        "nnx.value_and_grad(nnx_loss)",
        "nnx.value_and_grad(nnx.remat(nnx_loss, policy=policy))",
    ),
    "gradient": ("jax.value_and_grad(loss)", "jax.value_and_grad(rematerialised(loss))"),
}


SIZES = {"scan": "batch=512", "gradient": "batch=2048, scan=False"}


@pytest.fixture(scope="module", params=["scan", pytest.param("gradient", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def choice(place: str) -> Choice:
    """What is found for scanned layers, or for layers in a Python loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FOLDER)
        changes = Changes(remat=True)
        return choose(f"choose_steps:workload({SIZES[place]})", changes=changes, compiles=6)


def test_the_pasted_code_compiles_to_the_promised_plan(
    place: str, choice: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in choice.rows if row.candidate.change is not None]
    keyed = [row for row in rows if "KEPT" in row.candidate.change.code]
    assert keyed, [row.candidate.change.text for row in rows]
    for number, row in enumerate((keyed[0], rows[-1])):
        code = row.candidate.change.code
        before, after = PASTED[place]
        assert STEPS.count(before) == 1
        module = f"pasted_{place}_{number}"
        header, rest = STEPS.split("\nimport jax\n", 1)
        text = f"{header}\n{code}\nimport jax\n{rest}".replace(before, after)
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        (pasted,) = xlapipe.choose(f"{module}:workload({SIZES[place]})")
        promised = row.to_json()
        for name in ("total_bytes", "temp_bytes", "predicted_seconds"):
            assert pasted[name] == promised[name], (row.candidate.change.text, name)


def test_a_policy_saves_memory_and_the_fastest_row_that_fits_is_chosen(
    choice: Choice,
) -> None:
    (written,) = [row for row in choice.rows if row.candidate.change is None]
    assert min(row.memory.total_bytes for row in choice.rows) < written.memory.total_bytes
    fastest = min(row.memory.predicted.seconds for row in choice.rows if row.fits)
    assert [row.memory.predicted.seconds for row in choice.chosen] == [fastest]


def test_losses_and_gradients_are_equal_bit_for_bit(
    place: str, choice: Choice, tmp_path: Path
) -> None:
    codes = [row.candidate.change.code for row in choice.rows if row.candidate.change]
    before, after = PASTED[place]
    header, rest = STEPS.split("\nimport jax\n", 1)
    names = ["plain"]
    (tmp_path / "plain.py").write_text(STEPS, encoding="utf-8")
    for number, code in enumerate(codes):
        names.append(f"changed_{number}")
        text = f"{header}\n{code}\nimport jax\n{rest}".replace(before, after)
        (tmp_path / f"changed_{number}.py").write_text(text, encoding="utf-8")
    script = f"""
import importlib, jax, numpy as np
# Each operation is compiled by itself: in a jitted step XLA adds up the loss in another order.
jax.config.update("jax_disable_jit", True)
values = []
for name in {names!r}:
    workload = importlib.import_module(name).workload({SIZES[place]})
    keys = iter(jax.random.split(jax.random.key(0), 3))
    args = jax.tree.map(lambda a: jax.random.normal(next(keys), a.shape), workload.args)
    values.append(jax.tree.map(np.asarray, workload.fn(*args)))
for other in values[1:]:
    jax.tree.map(np.testing.assert_array_equal, values[0], other)
print(len(values))
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.split() == [str(len(names))], done.stderr[-2000:]


def test_a_step_without_a_gradient_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(XlapipeError, match="the step has no gradient"):
        xlapipe.choose("choose_steps:forward(batch=8)", remat=True)


def test_the_code_for_a_flax_module_compiles_to_the_promised_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    rows = xlapipe.choose("choose_steps:nnx_workload", remat=True, compiles=3)
    promised = next(row for row in rows if row["code"] and "KEPT" in row["code"])
    assert "nnx.value_and_grad(nnx.remat(…, policy=policy), …)" in promised["code"]
    before, after = PASTED["nnx"]
    header, rest = STEPS.split("\nimport jax\n", 1)
    assert rest.count(before) == 1
    text = f"{header}\n{promised['code']}\nimport jax\n{rest}".replace(before, after)
    (tmp_path / "pasted_nnx.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (pasted,) = xlapipe.choose("pasted_nnx:nnx_workload")
    for name in ("total_bytes", "temp_bytes", "predicted_seconds"):
        assert pasted[name] == promised[name], name


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


def test_what_no_policy_makes_fit_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    choice = choose(
        "choose_steps:workload(scan=False, layers=2)",
        changes=Changes(remat=True),
        limit_bytes=1000,
        compiles=2,
    )
    (note,) = choice.notes
    assert not choice.chosen and "a jax.lax.scan over the layers" in note
    assert choice.left_out > 0
