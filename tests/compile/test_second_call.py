"""Whether a second call compiles again, compared with jax's own cache on four CPUs."""

import dataclasses
import functools
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.report.json_schema import problems
from tests.steps import carried_steps
from tests.steps.second_call_forms import Compiles
from xlapipe import Workload, XlapipeError
from xlapipe.api.testing.session import PlansOfTest
from xlapipe.cli import main
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.expect import CompiledAtMost, CompiledOnce
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


def test_predictions_equal_what_jax_compiles(forms: dict[str, Any]) -> None:
    predicted = {}
    for name, text in forms["xlapipe"].items():
        second = "ValueError" if "call fails" in text else int("second call compiles" in text)
        known = [
            1,
            second,
            *([int("third call compiles again" in text)] if second in (0, 1) else []),
        ]
        predicted[name] = known
    assert predicted == forms["jax"]
    compiled = [counts[1] for counts in forms["jax"].values()]
    assert compiled.count(1) >= 20
    assert compiled.count(0) >= 20
    assert "ValueError" in compiled


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
        f"float32: tests/compile/test_second_call.py:{line}; the third call compiles nothing"
    )
    assert "x.astype" in row.advice


def test_a_second_call_that_cannot_be_traced_fails() -> None:
    def step(s: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            return carry * jnp.float32(1), None

        return {"w": jax.lax.scan(body, s["w"], None, 3)[0].astype(jnp.bfloat16)}

    call = lower(Workload(name="scan", fn=step, args=({"w": X},)), CONFIG).call
    assert call is not None
    assert call.refused.startswith("TypeError: scan body")


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


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["forward"])
@dataclasses.dataclass
class Model:
    w: Any
    forward: Any


@pytest.mark.parametrize(
    ("args", "call", "settings", "argument", "fix"),
    [
        ((X, 0.1), (X, 0.2), {"static_argnums": (1,)}, "rate", "do not make it static"),
        ((X, 0.1), (X, X.update(shape=())), {}, "rate", "jnp.asarray"),
        ((X, X), (X, X.update(shape=(4, 8))), {}, "rate", "one shape"),
        ((X, X), (X, X.update(dtype=jnp.bfloat16)), {}, "rate", "x.astype"),
        ((X, X), (X, None), {}, "rate", "zeros instead of None"),
        (
            *((X, Model(X, jax.jit(lambda x: x))), (X, Model(X, jax.jit(lambda x: x)))),
            *({}, "rate.forward", "make rate.forward once"),
        ),
        ((X, Model(X, 1)), (X, Model(X, 2)), {}, "rate.forward", "make it a leaf"),
    ],
)
def test_what_differs_between_two_calls_is_named_with_its_remedy(
    args: Any, call: Any, settings: Any, argument: str, fix: str
) -> None:
    facts = lowered_call(lambda w, rate: w * 2, *args, calls=[call], **settings)
    (other,) = facts.programs
    assert other.argument == argument
    assert fix in other.advice
    assert "PyTreeDef" not in str(other)
    assert " at 0x" not in str(other)


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


def _batch(size: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct((size, 8), dtype)


CALLS = {
    "last batch": (False, [(0, _batch(32)), (1, _batch(32)), (0, _batch(5)), (0, _batch(5))]),
    "evaluation": (True, [(False, _batch(32)), (True, _batch(32)), (True, _batch(32))]),
    "buckets": (False, [(0, _batch(size)) for size in (8, 16, 8, 32, 16)]),
    "dtypes": (False, [(0, _batch(8)), (0, _batch(8, jnp.bfloat16)), (np.int32(0), _batch(8))]),
    "a tree": (
        False,
        [({"a": 1}, _batch(8)), ({"a": 1, "b": 2}, _batch(8)), ({"a": 5}, _batch(8))],
    ),
    "None": (False, [(None, _batch(8)), (1, _batch(8)), (None, _batch(8))]),
    "committed": (
        False,
        [(0, jnp.ones((8, 8))), (0, jax.device_put(1.0 * np.ones((8, 8)), jax.devices()[0]))],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_programs_of_several_calls_are_those_of_jax(
    xlapipe_plan: PlansOfTest, name: str
) -> None:
    is_static, calls = CALLS[name]

    def step(n: Any, x: Any) -> Any:
        return jnp.sum(x) + sum(jax.tree.leaves(n))

    static = {"static_argnums": 0} if is_static else {}
    jitted = jax.jit(step, **static)  # type: ignore[call-overload]
    with jax.log_compiles():
        handler = Compiles()
        logger = logging.getLogger("jax._src.interpreters.pxla")
        logger.addHandler(handler)
        for n, x in calls:
            jitted(n, jnp.ones(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x)
        logger.removeHandler(handler)
    first, *others = calls
    work = Workload(name="calls", fn=step, args=first, calls=others, **static)
    call = lower(work, CONFIG).call
    assert call is not None
    assert 1 + len(call.programs) == handler.count
    assert call.calls == len(calls)


def test_too_many_programs_are_named(xlapipe_plan: PlansOfTest) -> None:
    work = Workload(
        name="calls", fn=lambda s, x: s + x.sum(), args=(X, X), calls=[(X, X), (X, _batch(5))]
    )
    plan = xlapipe_plan(work)
    assert plan.check(CompiledAtMost(2))
    assert not plan.check(CompiledAtMost(1))
    assert "call 3 compiles, since x is float32[5,8], and float32[8,8] in call 1" in str(
        plan.check(CompiledAtMost(1))
    )
    with pytest.raises(XlapipeError, match=r"calls has .*expected a tuple of 2 arguments.*fix"):
        Workload(name="calls", fn=len, args=(X, X), calls=[(X,)])


def test_check_compiles_the_program_of_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.steps.called_steps:workload"
    assert main(["check", name, "--calls", "own", "--deterministic", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "docs/schemas/check.v1.json").read_text())
    assert list(problems([row], schema)) == []
    assert [program["call"] for program in row["programs"]] == [1, 3]
    assert "batch[0] is int32[5]" in row["programs"][1]["why"]
    assert row["programs"][1]["total_bytes"] < row["programs"][0]["total_bytes"]
    assert all(program["cpu_seconds"] > 0 for program in row["programs"])
    cost = row["deterministic"]
    assert (cost["instructions"], cost["left"]) == (1, 0)
    assert all(seconds > 0 for seconds in cost["predicted_seconds"])

    shapes = "batch[0]=9,batch[1]=9x64;batch[0]=32,batch[1]=32x64:float16"
    assert main(["check", name, "--calls", shapes]) == 0
    printed = capsys.readouterr().out
    assert "5 calls use 4 programs, compiled in " in printed
    assert "call 4 compiles, since batch[0] is int32[9]" in printed
    assert "call 5 compiles, since batch[1] is float16[32,64]" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--calls", "batch=5"], "names 'batch', expected a leaf.*found table, batch"),
        (["--calls", "batch[0]=5x1"], "batch.0. the shape 5x1, expected one of as many"),
        (["--calls", "batch[0]=5:f99"], "dtype 'f99', expected one of jax"),
        (["--calls", "batch[0]"], "--calls: expected own, or shapes.*found 'batch.0.'"),
        (["--calls", "batch[0]=x"], "--calls: expected own, or shapes"),
        (["--deterministic", "--target", "v5e"], "--deterministic is for GPUs|libtpu"),
    ],
)
def test_calls_that_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "tests.steps.called_steps:workload", *options]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "fix: " in error


def test_a_dump_has_no_calls_to_compile(capsys: pytest.CaptureFixture[str]) -> None:
    golden = next((ROOT / "hlo_dumps").glob("*/*/manifest.json")).parent
    assert main(["check", str(golden), "--calls", "own"]) == 2
    assert "a dump is not compiled; fix: name workloads alone" in capsys.readouterr().err
