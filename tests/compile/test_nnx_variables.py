"""Variables of nnx: shared ones are passed once, and each has the name that the user knows."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from xlapipe import Workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named

pytestmark = pytest.mark.jax

X = jax.ShapeDtypeStruct((2, 4), jnp.float32)
FIRST = ["a.layers.0.bias", "a.layers.0.kernel", "a.layers.1.bias", "a.layers.1.kernel"]
SECOND = ["b.more.0.bias", "b.more.0.kernel"]


class _Second(nnx.Module):
    """A layer of another module, and one of its own."""

    def __init__(self, layer: nnx.Linear) -> None:
        self.layer = layer
        self.more = nnx.List([nnx.Linear(4, 4, rngs=nnx.Rngs(0)), layer])


@pytest.fixture
def modules() -> tuple[nnx.Module, nnx.Module]:
    rngs = nnx.Rngs(0)
    first = nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs))
    layer: Any = first.layers[0]
    return first, _Second(layer)


def _names(fn: Any, *args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
    workload = Workload(name="step", fn=nnx.jit(fn), args=args, kwargs=kwargs)
    program = lower(workload, target_named("h200").config_text)
    return [leaf.path for leaf in program.arguments], [leaf.path for leaf in program.outputs]


def test_variables_of_two_modules(modules: tuple[nnx.Module, nnx.Module]) -> None:
    arguments, outputs = _names(lambda a, b, x: b.layer(a(x)), *modules, X)
    assert arguments == [*FIRST, *SECOND, "x"]
    assert outputs == [f"updated.{name}" for name in (*FIRST, *SECOND)] + ["out"]


def test_modules_by_keyword(modules: tuple[nnx.Module, nnx.Module]) -> None:
    first, second = modules
    arguments, outputs = _names(lambda x, *, a, b: b.layer(a(x)), X, b=second, a=first)
    assert arguments == ["x", *FIRST, *SECOND]
    assert outputs == [f"updated.{name}" for name in (*FIRST, *SECOND)] + ["out"]


def test_modules_in_a_tree(modules: tuple[nnx.Module, nnx.Module]) -> None:
    first, second = modules
    arguments, _ = _names(lambda x, tree: tree["a"](x), X, {"a": first, "b": [second]})
    assert arguments == [
        "x",
        *(f"tree['a']{name[1:]}" for name in FIRST),
        *(f"tree['b'][0]{name[1:]}" for name in SECOND),
    ]


def test_a_step_that_returns_a_module(modules: tuple[nnx.Module, nnx.Module]) -> None:
    _, outputs = _names(lambda a, x: (a(x), nnx.Linear(4, 4, rngs=nnx.Rngs(0))), modules[0], X)
    assert outputs[-3:] == ["out[0]", "out[1].states[0][0]", "out[1].states[0][1]"]


def test_one_module_given_twice(modules: tuple[nnx.Module, nnx.Module]) -> None:
    arguments, _ = _names(lambda a, b, x: a(b(x)), modules[0], modules[0], X)
    assert arguments == [*FIRST, "x"]
