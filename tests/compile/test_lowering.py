"""Lowering alone, without a compile: what a step can read of the device, and what it may do."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from xlapipe import Workload, XlapipeError
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named

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
