"""Gradients that are written out, of layers without compression, against those of `jax.grad`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.compressed_resnet import bottleneck, stem, uncompressed
from models.compressed_resnet.model import initial
from models.compressed_resnet.sizes import ResNetConfig, blocks
from models.compressed_resnet.sizes import stem as stem_of

pytestmark = pytest.mark.jax

CONFIG = ResNetConfig(blocks=(2,), width=4, classes=3, image=15, bits=None)
BATCH = 3
STEM = "stem", stem_of(CONFIG), stem.plain, uncompressed.stem_layer
FIRST, SECOND = (
    (number, block, bottleneck.plain, uncompressed.block_layer)
    for number, block in enumerate(blocks(CONFIG))
)


@pytest.mark.parametrize(
    ("name", "sizes", "plain", "layer"),
    [
        pytest.param(*STEM, id="stem", marks=pytest.mark.slow),
        pytest.param(*FIRST, id="with-downsample", marks=pytest.mark.slow),
        pytest.param(*SECOND, id="with-identity", marks=pytest.mark.exhaustive),
    ],
)
def test_gradients_are_those_of_the_plain_layer(
    name: Any, sizes: Any, plain: Any, layer: Any
) -> None:
    parameters = initial(CONFIG, seed=5)[0]
    parameters = parameters["stem"] if name == "stem" else parameters["blocks"][name]
    # Scales and biases other than 1 and 0, in float32, so that rounding hides no error.
    rng = np.random.default_rng(1)
    noise = lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape, np.float32)  # noqa: E731
    parameters = jax.tree.map(noise, parameters)
    shape = sizes.input_shape(BATCH) if name == "stem" else sizes.conv1.input_shape(BATCH)
    x = jnp.asarray(rng.standard_normal(shape, np.float32))

    def loss(output: Any) -> Any:
        y, moments = output
        return jnp.sum(jnp.sin(jnp.arange(y.size).reshape(y.shape)) * y), moments

    def both(parameters: Any, x: Any) -> Any:
        of = jax.value_and_grad(lambda *args: loss(plain(sizes, *args)), (0, 1), has_aux=True)
        written = jax.value_and_grad(
            lambda *args: loss(layer(sizes, None, *args)), (0, 1), has_aux=True
        )
        return of(parameters, x), written(parameters, x)

    expected, actual = jax.jit(both)(parameters, x)
    if name == "stem":
        # Images get no gradient.
        expected, actual = ((value, of[0]) for value, of in (expected, actual))
    for one, other in zip(*map(jax.tree.leaves, (expected, actual)), strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-3, atol=2e-3 * float(jnp.abs(one).max()))
