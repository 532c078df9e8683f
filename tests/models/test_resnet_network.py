"""The ResNet that trains on compressed activations: sizes, passes, gradients."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.compressed_resnet import network
from models.compressed_resnet.model import initial
from models.compressed_resnet.sizes import (
    ResNetConfig,
    blocks,
    convolutions,
    differentiation_bytes,
    norm_channels,
    parameter_count,
    saved_bytes,
)
from models.compressed_resnet.step import abstract_state, initial_state, train_step
from models.compressed_resnet.workloads import (
    resnet50_backward,
    resnet50_forward,
    resnet50_train,
)

pytestmark = pytest.mark.jax

RESNET50 = ResNetConfig(classes=100)
TINY = ResNetConfig(blocks=(1, 1), width=8, classes=5, image=20)
BATCH = 6


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def residuals_of(config: ResNetConfig, batch: int) -> Any:
    images = jax.ShapeDtypeStruct((batch, config.image, config.image, 3), jnp.bfloat16)
    parameters, _ = jax.eval_shape(lambda: initial(config))
    return jax.eval_shape(lambda *args: network.forward(config, *args)[1], parameters, images)


@pytest.mark.parametrize("batch", [1, 8, 2048])
def test_resnet50_saves_what_reference_dump_001_states(batch: int) -> None:
    assert saved_bytes(RESNET50, batch) == 7_905_804 * batch


def test_resnet50_has_the_convolutions_and_gradients_of_reference_dump_001() -> None:
    assert len(convolutions(RESNET50)) == 53
    assert sum(np.prod(c.kernel_shape) for c in convolutions(RESNET50)) == 23_454_912
    assert parameter_count(RESNET50) * 4 == 94_851_328
    assert sum(block.downsample is not None for block in blocks(RESNET50)) == 4
    parameters, _ = jax.eval_shape(lambda: initial(RESNET50))
    assert bytes_of(parameters) == 94_851_328
    assert len(jax.tree.leaves(parameters)) == 160


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(RESNET50, marks=pytest.mark.slow),
        replace(TINY, bits=4),
        replace(TINY, image=33, blocks=(2, 1, 2)),
    ],
)
def test_saved_bytes_are_those_of_the_residuals(config: ResNetConfig) -> None:
    deviations = 4 * norm_channels(config)
    assert bytes_of(residuals_of(config, 3)) == saved_bytes(config, 3) + deviations


@pytest.mark.parametrize(
    ("field", "value"),
    [("bits", 3), ("blocks", ()), ("blocks", (3, 0)), ("image", 0), ("save", "block_inputs")],
)
def test_a_config_that_is_not_supported_is_an_error(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        replace(RESNET50, **{field: value})


def test_images_of_another_layout_or_size_are_an_error() -> None:
    parameters, _ = jax.eval_shape(lambda: initial(TINY))
    for shape in ((2, 3, 20, 20), (2, 24, 24, 3)):
        images = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for function in (network.apply, network.forward):
            with pytest.raises(ValueError, match=r"expected an array \[N, 20, 20, 3\], with chan"):
                jax.eval_shape(lambda *args: function(TINY, *args), parameters, images)  # noqa: B023


def test_passes_as_separate_programs_need_bits() -> None:
    plain = replace(TINY, bits=None)
    with pytest.raises(ValueError, match="fix: differentiate `apply`"):
        residuals_of(plain, 2)
    with pytest.raises(ValueError, match="needs bits"):
        saved_bytes(plain, 2)
    with pytest.raises(ValueError, match="needs bits"):
        differentiation_bytes(plain, 2, activations=3)


@pytest.mark.slow
def test_names_of_workloads_state_arguments_that_are_not_default() -> None:
    assert resnet50_train().name == "resnet50-train"
    assert resnet50_forward(batch=2048, bits=4).name == "resnet50-forward-batch2048-bits4"
    inputs = resnet50_train(bits=None, save="block_inputs")
    assert inputs.name == "resnet50-train-bitsNone-block_inputs"


@pytest.mark.slow
def test_arguments_and_state_have_the_expected_bytes() -> None:
    parameters, images = resnet50_forward().args
    assert bytes_of(images) == 8 * 224 * 224 * 3 * 2
    _, residuals, dlogits = resnet50_backward().args
    assert bytes_of(residuals) == 63_246_432 + 4 * norm_channels(RESNET50)
    assert dlogits.shape == (8, 100)
    state = abstract_state(RESNET50)
    assert bytes_of(state["optimizer"]) == bytes_of(parameters) == 94_851_328


@cache
def example() -> tuple[Any, Any, Any]:
    """Parameters, images and labels."""
    rng = np.random.default_rng(7)
    parameters, _ = initial(TINY, seed=3)
    # Zero at first, with which most gradients would be zero.
    for block in parameters["blocks"].values():
        block["conv3"]["scale"] = jnp.ones_like(block["conv3"]["scale"])
    images = rng.standard_normal((BATCH, TINY.image, TINY.image, 3))
    labels = rng.integers(0, TINY.classes, BATCH)
    return parameters, jnp.asarray(images, jnp.bfloat16), jnp.asarray(labels, jnp.int32)


@cache
def gradients(config: ResNetConfig) -> Any:
    parameters, images, labels = example()

    def loss(parameters: Any) -> Any:
        return network.cross_entropy(network.apply(config, parameters, images)[0], labels)

    # Compiling takes most of the time.
    fast = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.grad(loss), compiler_options=fast)(parameters)


def cosine(one: Any, other: Any) -> float:
    """The cosine between two trees of gradients."""
    a, b = (
        np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
        for tree in (one, other)
    )
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


# Rounding to bfloat16 alone gives 0.991, between the plain network and the same in float32.
@pytest.mark.parametrize(
    ("bits", "least"),
    [
        pytest.param(8, 0.985, marks=pytest.mark.slow),
        pytest.param(4, 0.97, marks=pytest.mark.exhaustive),
        pytest.param(2, 0.6, marks=pytest.mark.exhaustive),
    ],
)
def test_gradients_of_more_bits_are_closer_to_those_without_compression(
    bits: int, least: float
) -> None:
    plain = gradients(replace(TINY, bits=None))
    assert cosine(gradients(replace(TINY, bits=bits)), plain) > least


@pytest.mark.exhaustive
def test_the_passes_as_separate_programs_give_the_gradients_of_apply() -> None:
    parameters, images, labels = example()
    logits, residuals, moments = jax.jit(lambda *args: network.forward(TINY, *args))(
        parameters, images
    )
    dlogits = jax.grad(network.cross_entropy)(logits, labels)
    separate = jax.jit(lambda *args: network.backward(TINY, *args))(parameters, residuals, dlogits)
    assert cosine(separate, gradients(TINY)) > 0.9999
    assert jax.tree.structure(moments) == jax.tree.structure(initial(TINY)[1])


@pytest.mark.exhaustive
def test_training_overfits_a_batch_and_is_deterministic() -> None:
    _, images, labels = example()
    step = jax.jit(train_step(TINY))
    states = []
    for _ in range(2):
        state = initial_state(TINY, seed=3)
        for _ in range(12):
            state, metrics = step(state, images, labels)
        states.append(state)
    assert metrics["correct"] == BATCH
    assert all(
        (np.asarray(a) == np.asarray(b)).all()
        for a, b in zip(*map(jax.tree.leaves, states), strict=True)
    )
