"""The kernel for batch norm, ReLU, mask and codes, against XLA's fusions; in the interpreter."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.compressed_resnet.compression import dequantise, unpack_mask
from models.compressed_resnet.conv_norm import activate_by_fusions
from models.compressed_resnet.norm_kernel import Affine, norm_relu_codes, supports

# Channels of which several pixels are in a group, one, and which several groups hold.
SHAPES = ((2, 3, 4, 64), (3, 2, 2, 512), (4, 1, 3, 1024))


def example(shape: tuple[int, ...], shortcut: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)

    def norm() -> Affine:
        mean, scale, bias = rng.standard_normal((3, shape[-1])).astype(np.float32)
        return Affine(*map(jnp.asarray, (mean, 0.5 + np.abs(scale), scale, bias)))

    z, other = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for _ in range(2))
    return (
        z,
        norm(),
        None if shortcut == "none" else other,
        norm() if shortcut == "norm" else None,
    )


@pytest.mark.parametrize(
    ("shape", "shortcut"),
    [
        pytest.param(SHAPES[0], "none"),
        pytest.param(SHAPES[1], "none", marks=pytest.mark.exhaustive),
        pytest.param(SHAPES[2], "none", marks=pytest.mark.slow),
        pytest.param(SHAPES[0], "identity", marks=pytest.mark.exhaustive),
        pytest.param(SHAPES[0], "norm", marks=pytest.mark.slow),
    ],
)
def test_the_kernel_computes_what_fusions_do(shape: tuple[int, ...], shortcut: str) -> None:
    z, norm, *rest = example(shape, shortcut)
    # Jitted, so that XLA's CPU compiler contracts the same products and sums in both.
    by_kernel = jax.jit(partial(norm_relu_codes, interpret=True))(z, norm, *rest)
    by_fusions = jax.jit(activate_by_fusions, static_argnums=2)(z, norm, 2, *rest)
    for one, other in zip(*map(jax.tree.leaves, (by_kernel, by_fusions)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    (h, mask, codes), (h2, mask2, codes2) = by_kernel, by_fusions
    np.testing.assert_allclose(np.float32(h), np.float32(h2), rtol=0.01, atol=1e-6)
    positive, positive2 = (unpack_mask(words, shape) for words in (mask, mask2))
    np.testing.assert_array_equal(positive, np.asarray(h) > 0)
    assert np.mean(np.asarray(positive) != np.asarray(positive2)) < 1e-3
    np.testing.assert_array_equal(codes.minimum, codes2.minimum)
    np.testing.assert_array_equal(codes.scale, codes2.scale)
    restored, restored2 = (np.asarray(dequantise(c, shape), np.float32) for c in (codes, codes2))
    assert np.mean(restored != restored2) < 0.01


def test_a_channel_that_is_not_finite_makes_its_groups_nan() -> None:
    z, norm, *_ = example((2, 2, 2, 1024), "none")
    mean = norm.mean.at[700].set(jnp.nan)
    h, _, codes = norm_relu_codes(z, norm._replace(mean=mean), None, None, interpret=True)
    assert np.isnan(np.asarray(h, np.float32)[..., 700]).all()
    # Groups of channels 0 to 511 alternate with those of 512 to 1023.
    scales = np.asarray(codes.scale, np.float32).reshape(-1, 2)
    assert not np.isnan(scales[:, 0]).any()
    assert np.isnan(scales[:, 1]).all()


def test_shapes_whose_groups_have_changing_channels_are_not_supported() -> None:
    assert supports((2, 3, 4, 64), 2)
    assert not supports((2, 3, 4, 64), 4)
    assert not supports((2, 2, 2, 96), 2)
    assert not supports((1, 1, 7, 64), 2)
