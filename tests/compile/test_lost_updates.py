"""Updates that jax drops, unused arguments, and outputs that depend on no argument are listed."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.zoo.refused import train, trained
from xlapipe import Workload, XlapipeError
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.manifest import Manifest

pytestmark = pytest.mark.jax

CONFIG = target_named("h200").config_text
X = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def lowered(fn: Any, *args: Any) -> Any:
    return lower(Workload(name="step", fn=fn, args=args), CONFIG)


def test_updates_that_a_plain_function_drops_are_refused_and_the_fix_carries_them() -> None:
    with pytest.raises(XlapipeError, match=r"in place \(model\.bias.* fix: give nnx\.jit\(fn\)"):
        lowered(train, *trained(), X)
    program = lowered(nnx.jit(train), *trained(), X)
    assert program.dropped_updates == ()
    assert "updated.model.kernel" in [leaf.path for leaf in program.outputs]


def test_updates_that_the_users_own_jit_drops_are_listed() -> None:
    fn = jax.jit(train)
    original = fn._fun
    program = lowered(fn, *trained(), X)
    assert {"model.bias.value", "model.kernel.value"} <= set(program.dropped_updates)
    assert fn._fun is original


def test_modules_that_are_returned_are_not_dropped() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        return train(model, optimizer, x), model, optimizer

    assert lowered(step, *trained(), X).dropped_updates == ()


def test_a_value_that_is_stored_in_a_closed_over_object_is_listed() -> None:
    state = SimpleNamespace(inner={"weight": jnp.ones((64, 64))})

    def step(x: Any) -> Any:
        state.inner["weight"] = state.inner["weight"] @ x
        return x

    assert lowered(step, X).dropped_updates == ("state.inner['weight']",)


def test_unused_arguments_and_constant_outputs_are_listed() -> None:
    @jax.jit
    def inner(x: Any, y: Any) -> Any:
        return x + 1, jnp.arange(4)

    def step(x: Any, unused: Any) -> Any:
        kept, constant = inner(x, x)
        return {"kept": kept, "constant": constant, "three": 3.0}

    program = lowered(step, X, X)
    notes = Manifest(
        **dict.fromkeys(("workload", "target", "target_description", "target_source"), "x"),
        gemm_policy="auto",
        tuned=False,
        versions={},
        options={},
        arguments=program.arguments,
        outputs=program.outputs,
        requested_dots=(),
        expectations=(),
        memory_analysis={},
        left_out=("XLA_FLAGS=--xla_gpu_x=1",),
    ).notes
    assert notes[0] == "1 argument not used by the program: unused"
    assert notes[1] == "2 outputs independent of all arguments: out['constant'], out['three']"
    assert notes[2].startswith("XLA_FLAGS=--xla_gpu_x=1 of the environment is left out")


def test_an_output_of_a_callback_or_a_reference_is_not_constant() -> None:
    reference = jax.new_ref(jnp.zeros(4))

    def step(x: Any) -> Any:
        reference[...] += x
        return reference[...]

    (out, updated) = lowered(step, jax.ShapeDtypeStruct((4,), jnp.float32)).outputs
    assert (out.constant, updated.path, updated.constant) == (False, "updated.ref[0]", False)
