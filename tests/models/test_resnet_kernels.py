"""The kernels, against XLA's fusions; in the interpreter."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.compressed_resnet.compression import (
    Codes,
    dequantise,
    low_frequency,
    pack_mask,
    quantise,
    unpack_mask,
    upsample,
)
from models.compressed_resnet.conv_norm import activate_by_fusions, channel_sums
from models.compressed_resnet.kernels import (
    Affine,
    norm_relu_codes,
    norm_sums,
    quantise_residual,
    restore,
    supports,
)

pytestmark = pytest.mark.jax

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


def assert_almost_the_same_codes(
    codes: Codes, expected: Codes, shape: tuple[int, ...], different: float = 0.01
) -> None:
    """Codes of values that are as near to two codes may differ."""
    np.testing.assert_array_equal(codes.minimum, expected.minimum)
    np.testing.assert_array_equal(codes.scale, expected.scale)
    assert [array.shape for array in codes] == [array.shape for array in expected]
    restored, other = (np.asarray(dequantise(c, shape), np.float32) for c in (codes, expected))
    assert np.mean(restored != other) < different


@pytest.mark.parametrize(
    ("shape", "shortcut", "bits"),
    [
        pytest.param(SHAPES[0], "none", 2),
        pytest.param(SHAPES[1], "none", 8, marks=pytest.mark.exhaustive),
        pytest.param(SHAPES[2], "none", 4, marks=pytest.mark.exhaustive),
        pytest.param(SHAPES[0], "identity", 2, marks=pytest.mark.exhaustive),
        pytest.param(SHAPES[2], "norm", 2, marks=pytest.mark.exhaustive),
    ],
)
def test_the_kernel_for_batch_norm_computes_what_fusions_do(
    shape: tuple[int, ...], shortcut: str, bits: int
) -> None:
    z, norm, *rest = example(shape, shortcut)
    # Jitted, so that XLA's CPU compiler contracts the same products and sums in both.
    kernel = partial(norm_relu_codes, bits=bits, interpret=True)
    h, mask, codes = jax.jit(kernel)(z, norm, *rest)
    h2, mask2, codes2 = jax.jit(partial(activate_by_fusions, bits=bits))(z, norm, *rest)
    assert (h.shape, h.dtype, mask.shape, mask.dtype) == (
        h2.shape,
        h2.dtype,
        mask2.shape,
        mask2.dtype,
    )
    np.testing.assert_allclose(np.float32(h), np.float32(h2), rtol=0.01, atol=1e-6)
    positive, positive2 = (unpack_mask(words, shape) for words in (mask, mask2))
    np.testing.assert_array_equal(positive, np.asarray(h) > 0)
    assert np.mean(np.asarray(positive) != np.asarray(positive2)) < 1e-3
    assert_almost_the_same_codes(codes, codes2, shape)


@pytest.mark.exhaustive
def test_a_channel_that_is_not_finite_makes_its_groups_nan() -> None:
    z, norm, *_ = example((2, 2, 2, 1024), "none")
    mean = norm.mean.at[700].set(jnp.nan)
    h, _, codes = norm_relu_codes(z, norm._replace(mean=mean), None, None, bits=2, interpret=True)
    assert np.isnan(np.asarray(h, np.float32)[..., 700]).all()
    # Groups of channels 0 to 511 alternate with those of 512 to 1023.
    scales = np.asarray(codes.scale, np.float32).reshape(-1, 2)
    assert not np.isnan(scales[:, 0]).any()
    assert np.isnan(scales[:, 1]).all()


# Several pixels in a group; several groups in a pixel, and images of which rows are left out.
IMAGES = ((2, 4, 8, 64), (1, 7, 4, 1024))


@pytest.mark.parametrize(
    ("shape", "bits"),
    [
        pytest.param(IMAGES[0], 2, marks=pytest.mark.slow),
        pytest.param(IMAGES[1], 2, marks=pytest.mark.exhaustive),
        pytest.param(IMAGES[1], 8, marks=pytest.mark.exhaustive),
    ],
)
def test_kernels_compress_and_restore_what_differs_from_the_low_frequencies(
    shape: tuple[int, ...], bits: int
) -> None:
    # Sums and differences of multiples of 1/8 are exact in bfloat16.
    x = jnp.asarray(np.random.default_rng(5).integers(-8, 8, shape) / 8, jnp.bfloat16)
    low = low_frequency(x * 8).astype(jnp.bfloat16).round() / 8
    low = low.astype(jnp.float8_e4m3fn)
    spread = upsample(low, shape[1:3])
    codes = jax.jit(partial(quantise_residual, bits=bits, interpret=True))(x, low)
    assert_almost_the_same_codes(codes, quantise(x - spread, bits), shape, 0.03)
    restored = jax.jit(partial(restore, shape=shape, interpret=True))(codes, low)
    expected = dequantise(codes, shape, jnp.float32) + spread.astype(jnp.float32)
    assert restored.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(restored), expected, rtol=2**-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_groups_that_are_not_finite_become_nan_and_constant_ones_stay(value: float) -> None:
    shape = (1, 4, 8, 64)
    x = np.zeros(shape, jnp.bfloat16)
    groups = x.reshape(-1, 512)
    groups[1, 77] = value
    groups[2] = -3.5
    low = jnp.zeros((1, 1, 2, 64), jnp.float8_e4m3fn)
    codes = quantise_residual(jnp.asarray(x), low, bits=2, interpret=True)
    restored = np.asarray(restore(codes, low, shape, interpret=True), np.float32).reshape(-1, 512)
    finite = [True, value == 3e38, True, True]
    assert np.isfinite(restored).all(axis=1).tolist() == finite
    assert np.isnan(restored).all(axis=1).tolist() == [not item for item in finite]
    assert (restored[2] == -3.5).all()
    assert not restored[[0, 3]].any()


@pytest.mark.parametrize(
    ("shape", "keep"),
    [
        pytest.param((2, 4, 8, 64), True, marks=pytest.mark.slow),
        pytest.param((4, 2, 2, 1024), False, marks=pytest.mark.exhaustive),
        pytest.param((4, 8, 8, 512), True, marks=pytest.mark.exhaustive),
    ],
)
def test_the_kernel_for_sums_adds_masked_gradients(shape: tuple[int, ...], keep: bool) -> None:
    rng = np.random.default_rng(6)
    dy, z = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for _ in range(2))
    positive = jnp.asarray(rng.integers(0, 2, shape), jnp.bool)
    codes = quantise(z, 2)
    result, sums = norm_sums(dy, pack_mask(positive), codes, keep=keep, interpret=True)
    expected = dy.astype(jnp.float32) * positive
    assert (result == (expected if keep else dy)).all()
    product = expected * dequantise(codes, shape, jnp.float32)
    np.testing.assert_allclose(sums, jnp.stack(channel_sums(expected, product)), atol=1e-4)


def test_shapes_whose_groups_are_not_aligned_with_channels_are_not_supported() -> None:
    assert supports((2, 3, 4, 64))
    assert not supports((2, 2, 2, 96))
    assert not supports((2, 8, 8, 16))
    assert not supports((1, 1, 7, 64))
    assert not supports((0, 3, 4, 64))
    # Low frequencies at addresses of more than 32 bits.
    assert supports((24_000, 112, 112, 64))
    assert not supports((24_576, 112, 112, 64))
