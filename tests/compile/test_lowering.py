"""Lowering alone, without a compile: what a step can read of the device, and what it may do.

Updates that jax drops, unused arguments, and outputs that depend on no argument are listed, nnx's
variables have the names that the user knows.
"""

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

ROWS = jax.ShapeDtypeStruct((2, 4), jnp.float32)
FIRST = ["a.layers.0.bias", "a.layers.0.kernel", "a.layers.1.bias", "a.layers.1.kernel"]
SECOND = ["b.more.0.bias", "b.more.0.kernel"]
SQUARE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
pytestmark = pytest.mark.jax

CONFIG = target_named("h200").config_text
X = jax.ShapeDtypeStruct((8,), jnp.float32)


def lowered(fn: Any, *args: Any, **fields: Any) -> Any:
    return lower(Workload(name="step", fn=fn, args=args or (X,), **fields), CONFIG)


def test_a_step_sees_the_target_and_afterwards_the_cpu_again() -> None:
    seen = {}

    def step(x: jax.Array) -> jax.Array:
        device = jax.local_devices()[0]
        seen["inside"] = (jax.default_backend(), device.device_kind, device.compute_capability)
        return x + 1

    before = jax.default_backend(), jax.local_devices()
    lowered(step)
    assert seen["inside"] == ("gpu", "NVIDIA H200 141GB HBM3e", "9.0")
    assert (jax.default_backend(), jax.local_devices()) == before


def test_what_a_step_computes_while_it_is_traced_is_computed_here() -> None:
    def step(x: jax.Array) -> jax.Array:
        with jax.ensure_compile_time_eval():
            total = int((jnp.arange(5) == 1).sum() + jnp.ones(3).sum())
        return x * total

    (leaf,) = lowered(step).arguments
    assert (leaf.path, leaf.size_bytes) == ("x", 32)


def test_statistics_of_the_device_are_refused() -> None:
    def step(x: jax.Array) -> jax.Array:
        return x * jax.devices()[0].memory_stats()["bytes_in_use"]

    with pytest.raises(XlapipeError, match=r"device\.memory_stats of the target"):
        lowered(step)


def test_a_python_scalar_is_an_argument_with_a_weak_type() -> None:
    x, scale = lowered(lambda x, scale: x * scale, X, 0.5).arguments
    assert (x.dtype, scale.dtype, scale.shape) == ("float32", "float32", ())


def test_packed_bytes_of_elements_below_a_byte() -> None:
    nibbles = jax.ShapeDtypeStruct((2048,), jnp.int4)
    (leaf,) = lowered(lambda x: x, nibbles).arguments
    assert leaf.size_bytes == 1024


def test_a_value_of_another_trace_is_refused() -> None:
    scales = []

    def make() -> jax.Array:
        scales.append(jnp.ones(8) * 2)
        return scales[0]

    jax.eval_shape(make)
    with pytest.raises(XlapipeError, match=r"float32\[8\] that another trace computed.*fix: "):
        lowered(lambda x: x * scales[0])
    scales[0] = jnp.ones(8) * 2  # the fix
    assert [leaf.path for leaf in lowered(lambda x: x * scales[0]).arguments] == ["x"]


def test_a_trace_for_one_target_is_not_used_for_another() -> None:
    seen = []

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        device: Any = jax.devices()[0]
        seen.append((device.device_kind, jax.local_device_count()))
        return x + 1

    mesh = jax.sharding.Mesh(jax.devices()[:1], ("d",))
    with jax.set_mesh(mesh):  # whose device is this machine's for each target
        for target in ("h200", "a100_sxm_80", "h200"):
            lower(Workload(name="step", fn=step, args=(X,)), target_named(target).config_text)
        assert seen == [("NVIDIA H200 141GB HBM3e", 1), ("NVIDIA A100-SXM4-80GB", 1)]
        step(jnp.ones(8))
    assert len(seen) == 3  # the CPU has its own trace


def test_updates_that_a_plain_function_drops_are_refused_and_the_fix_carries_them() -> None:
    with pytest.raises(XlapipeError, match=r"in place \(model\.bias.* fix: give nnx\.jit\(fn\)"):
        lowered(train, *trained(), SQUARE)
    program = lowered(nnx.jit(train), *trained(), SQUARE)
    assert program.dropped_updates == ()
    assert "updated.model.kernel" in [leaf.path for leaf in program.outputs]


def test_updates_that_the_users_own_jit_drops_are_listed() -> None:
    fn = jax.jit(train)
    original = fn._fun
    program = lowered(fn, *trained(), SQUARE)
    assert {"model.bias.value", "model.kernel.value"} <= set(program.dropped_updates)
    assert fn._fun is original


def test_modules_that_are_returned_are_not_dropped() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        return train(model, optimizer, x), model, optimizer

    assert lowered(step, *trained(), SQUARE).dropped_updates == ()


def test_unused_arguments_and_constant_outputs_are_listed() -> None:
    @jax.jit
    def inner(x: Any, y: Any) -> Any:
        return x + 1, jnp.arange(4)

    def step(x: Any, unused: Any) -> Any:
        kept, constant = inner(x, x)
        return {"kept": kept, "constant": constant, "three": 3.0}

    program = lowered(step, SQUARE, SQUARE)
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
    program = lower(workload, CONFIG)
    return [leaf.path for leaf in program.arguments], [leaf.path for leaf in program.outputs]


def test_variables_of_two_modules(modules: tuple[nnx.Module, nnx.Module]) -> None:
    arguments, outputs = _names(lambda a, b, x: b.layer(a(x)), *modules, ROWS)
    assert arguments == [*FIRST, *SECOND, "x"]
    assert outputs == [f"updated.{name}" for name in (*FIRST, *SECOND)] + ["out"]


def test_modules_by_keyword(modules: tuple[nnx.Module, nnx.Module]) -> None:
    first, second = modules
    arguments, outputs = _names(lambda x, *, a, b: b.layer(a(x)), ROWS, b=second, a=first)
    assert arguments == ["x", *FIRST, *SECOND]
    assert outputs == [f"updated.{name}" for name in (*FIRST, *SECOND)] + ["out"]


def test_modules_in_a_tree(modules: tuple[nnx.Module, nnx.Module]) -> None:
    first, second = modules
    arguments, _ = _names(lambda x, tree: tree["a"](x), ROWS, {"a": first, "b": [second]})
    assert arguments == [
        "x",
        *(f"tree['a']{name[1:]}" for name in FIRST),
        *(f"tree['b'][0]{name[1:]}" for name in SECOND),
    ]


def test_a_step_that_returns_a_module(modules: tuple[nnx.Module, nnx.Module]) -> None:
    _, outputs = _names(lambda a, x: (a(x), nnx.Linear(4, 4, rngs=nnx.Rngs(0))), modules[0], ROWS)
    assert outputs[-3:] == ["out[0]", "out[1].states[0][0]", "out[1].states[0][1]"]


def test_one_module_given_twice(modules: tuple[nnx.Module, nnx.Module]) -> None:
    arguments, _ = _names(lambda a, b, x: a(b(x)), modules[0], modules[0], ROWS)
    assert arguments == [*FIRST, "x"]
