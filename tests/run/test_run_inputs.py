"""Inputs of a built executable that XLA stores otherwise than jax shows them, on the CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from xlapipe.files.typed_data import typed
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, leaf_json
from xlapipe.run.executable import LoadedExecutable
from xlapipe.run.inputs import random_inputs, stored_array

pytestmark = pytest.mark.jax

ARGUMENTS = (
    ArgumentLeaf("key", (), "key<fry>", 8, False, 0),
    ArgumentLeaf("x", (8,), "float32", 32, False, 1, memory_kind="pinned_host"),
)
OUTPUTS = (
    OutputLeaf("out[0]", (4,), "float32", 16, 0),
    OutputLeaf("out[1]", (2,), "key<fry>", 16, 1),
    OutputLeaf("out[2]", (8,), "float32", 32, 2, memory_kind="pinned_host"),
)


def step(key: Any, x: Any) -> Any:
    on_device = jax.device_put(x, jax.memory.Space.Device)
    noise = jax.random.normal(key, (4,)) + on_device.sum()
    return noise, jax.random.split(key), jax.device_put(on_device * 2, jax.memory.Space.Host)


@pytest.fixture
def executable() -> LoadedExecutable:
    """The step, compiled for the CPU, in place of a built executable."""
    device = jax.devices("cpu")[0]
    on_host = SingleDeviceSharding(device, memory_kind="pinned_host")
    arguments = (
        jax.eval_shape(jax.random.key, 0),
        jax.ShapeDtypeStruct((8,), jnp.float32, sharding=on_host),
    )
    compiled = jax.jit(step).lower(*arguments).compile()
    manifest: Any = SimpleNamespace(arguments=ARGUMENTS, outputs=OUTPUTS, mesh=None)
    return LoadedExecutable(Path(), manifest, (device,), compiled.runtime_executable())


def test_keys_and_host_memory_are_placed_as_the_program_takes_them(
    executable: LoadedExecutable,
) -> None:
    values = random_inputs(3, ARGUMENTS)
    assert values[0].shape == (2,)
    assert values[0].dtype == np.uint32
    placed = {leaf.parameter_number: executable.place(leaf, values[i])
              for i, leaf in enumerate(ARGUMENTS)}  # fmt: skip
    assert placed[1].sharding.memory_kind == "pinned_host"
    noise, keys, doubled = executable.execute([placed[number] for number in sorted(placed)])
    assert doubled.sharding.memory_kind == "pinned_host"
    key = jax.random.wrap_key_data(values[0], impl="threefry2x32")
    expected_noise, expected_keys, _ = jax.jit(step)(key, values[1])
    assert np.array_equal(np.asarray(noise), np.asarray(expected_noise))
    assert np.array_equal(np.asarray(keys), jax.random.key_data(expected_keys))
    assert np.array_equal(np.asarray(doubled), values[1] * 2)


@pytest.mark.parametrize(
    ("dtype", "words"), [("key<fry>", 2), ("key<rbg>", 4), ("key<urbg>", 4)], ids=str
)
def test_a_key_is_stored_as_its_words(dtype: str, words: int) -> None:
    assert stored_array((3,), dtype) == jax.ShapeDtypeStruct((3, words), "uint32")
    assert stored_array((3,), "bfloat16") == jax.ShapeDtypeStruct((3,), "bfloat16")


def test_the_memory_of_a_leaf_is_in_the_manifest_only_if_it_is_not_the_devices() -> None:
    for leaf in ARGUMENTS:
        data = leaf_json(leaf)
        assert ("memory_kind" in data) == (leaf.memory_kind is not None)
        assert typed(ArgumentLeaf, data) == leaf
