"""Whether a second call compiles again, compared with jax's own cache on four CPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.steps import carried_steps
from xlapipe import Workload, XlapipeError
from xlapipe.api.testing.session import PlansOfTest
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.expect import CompiledOnce
from xlapipe.plans.call_facts import CallFacts
from xlapipe.plans.second_call import Why, second_call

ROOT = Path(__file__).parents[2]
CONFIG = target_named("h200").config_text
X = jax.ShapeDtypeStruct((8, 8), jnp.float32)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    cache = str(tmp_path_factory.mktemp("cache"))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": cache}
    done = subprocess.run(
        [sys.executable, "-m", "tests.steps.second_call_forms"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    yield json.loads(done.stdout)


@pytest.mark.slow
def test_predictions_equal_what_jax_compiles(forms: dict[str, Any]) -> None:
    predicted = {}
    for name, text in forms["xlapipe"].items():
        second = "ValueError" if "call fails" in text else int("second call compiles" in text)
        predicted[name] = [1, second]
    assert predicted == forms["jax"]
    compiled = [counts[1] for counts in forms["jax"].values()]
    assert compiled.count(1) >= 20
    assert compiled.count(0) >= 20
    assert "ValueError" in compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "argument", "why"),
    [
        pytest.param(
            *("lbfgs", "state[2].info.num_linesearch_steps", Why.WEAK_TYPE), marks=pytest.mark.slow
        ),
        ("mixed_adam", "state[0].mu['w']", Why.DTYPE),
        ("sgd_of_an_array", "params['w']", Why.DTYPE),
        ("train_state", "state.step", Why.PLACE),
        ("dynamic_scale", "scale.scale", Why.WEAK_TYPE),
    ],
)
def test_steps_of_public_libraries_that_compile_twice(
    xlapipe_plan: PlansOfTest, name: str, argument: str, why: Why
) -> None:
    make = getattr(carried_steps, name)
    plan = xlapipe_plan(make())
    assert (argument, why) in [(row.argument, row.why) for row in plan.recompiles]
    assert argument in str(plan.check(CompiledOnce()))
    assert not plan.check(CompiledOnce())
    fixed = xlapipe_plan(make(once=True))
    assert fixed.recompiles == ()
    assert fixed.check(CompiledOnce())


def test_a_line_and_a_fix_are_named(xlapipe_plan: PlansOfTest) -> None:
    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] * x}, x.sum()

    plan = xlapipe_plan(step, {"w": X.update(dtype=jnp.bfloat16)}, X)
    (row,) = plan.recompiles
    assert (row.was, row.becomes, row.output) == ("bfloat16", "float32", "out[0]['w']")
    line = step.__code__.co_firstlineno + 1
    assert second_call(plan.program) == (
        "if out[0]['w'] goes in again as state['w'], the second call compiles again: "
        "state['w'] goes in as bfloat16 and comes back as "
        f"float32: tests/compile/test_second_call.py:{line}"
    )
    assert "x.astype" in row.advice


def lowered_call(fn: Any, *args: Any, **settings: Any) -> CallFacts:
    call = lower(Workload(name="step", fn=fn, args=args, **settings), CONFIG).call
    assert call is not None
    return call


def test_outputs_of_another_rank_and_gradients_are_no_next_arguments() -> None:
    def loss(ws: Any, x: Any) -> Any:
        return jnp.mean((x @ ws["w"]) ** 2)

    def accumulated(ws: Any, xs: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(ws, x)), None

        zeros = jax.tree.map(jnp.zeros_like, ws)
        return jax.tree.map(lambda g: g / 4, jax.lax.scan(add, zeros, xs)[0])

    def sgd(ws: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))

    stacked = X.update(shape=(4, 8, 8))
    assert lowered_call(lambda z: {"z": jnp.stack([z, z])}, X).carried == {}
    for fn, x in ((jax.grad(loss), X), (accumulated, stacked)):
        call = lowered_call(fn, {"w": X}, x)
        assert (call.carried, call.gradients) == ({}, ("out['w']",))
    call = lowered_call(sgd, {"w": X}, X)
    assert (call.carried, call.gradients) == ({"ws": "out"}, ())


def test_a_state_that_comes_back_elsewhere_is_named() -> None:
    def step(a: Any, x: Any) -> Any:
        return x.sum(), (a + 1).astype(jnp.bfloat16)

    def carried(carry: Any) -> Any:
        made = lower(Workload(name="step", fn=step, args=(X, X), carry=carry), CONFIG)
        return made.call.carried if made.call is not None else None

    assert carried({}) == {}
    assert carried({"a": "out[1]"}) == {"a": "out[1]"}
    with pytest.raises(
        XlapipeError, match=r"carry names 'out\[2\]'.*found out\[0\], out\[1\]; fix"
    ):
        carried({"a": "out[2]"})
    with pytest.raises(
        XlapipeError, match=r"carry names 'b', expected an argument.*found a, x; fix"
    ):
        carried({"b": "out[1]"})
    with pytest.raises(XlapipeError, match=r"expected the path of an argument.*fix"):
        carried({"a": 1})


def test_a_counter_that_nothing_else_decides_is_compared() -> None:
    def step(params: Any, count: Any, x: Any) -> Any:
        return {"w": params["w"] - x}, count + jnp.int32(1), x.sum()

    call = lower(Workload(name="count", fn=step, args=({"w": X}, 0, X)), CONFIG).call
    assert call is not None
    assert call.carried == {"params": "out[0]", "count": "out[1]"}
