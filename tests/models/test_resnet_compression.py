"""Compression of activations compared with NumPy, and its bounds."""

from functools import cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from models.compressed_resnet import sizes
from models.compressed_resnet.compression.averages import low_frequency, upsample
from models.compressed_resnet.compression.codes import CODE_BITS, Codes, dequantise, quantise
from models.compressed_resnet.compression.groups import pack, unpack
from models.compressed_resnet.compression.masks import pack_mask, unpack_mask
from models.compressed_resnet.compression.pooling import (
    max_pool_gradient,
    max_pool_with_offsets,
    pooled_shape,
)

pytestmark = pytest.mark.jax

BF16 = ml_dtypes.bfloat16
BITS = CODE_BITS
# Whole groups, and a part of a group after a whole one. Each is compiled once for all tests.
WHOLE, PART = (3, 8, 8, 16), (1, 7, 7, 13)
SHAPES = (WHOLE, PART)
FINITE = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)

bits_and_shape = st.tuples(st.sampled_from(BITS), st.sampled_from(SHAPES))


@cache
def round_trip(bits: int, shape: tuple[int, ...]) -> Any:
    def both(x: Any) -> tuple[Codes, Any]:
        codes = quantise(x, bits)
        return codes, dequantise(codes, shape)

    return jax.jit(both)


@cache
def mask_round_trip(shape: tuple[int, ...]) -> Any:
    def both(mask: Any) -> tuple[Any, Any]:
        packed = pack_mask(mask)
        return packed, unpack_mask(packed, shape)

    return jax.jit(both)


def groups_in(x: Any) -> list[npt.NDArray[np.float64]]:
    flat = np.asarray(x).astype(np.float64).reshape(-1)
    return [flat[start : start + 512] for start in range(0, flat.size, 512)]


@settings(deadline=None, max_examples=30)
@given(st.data(), bits_and_shape)
def test_a_round_trip_changes_elements_by_half_a_step(
    data: st.DataObject, case: tuple[int, tuple[int, ...]]
) -> None:
    """(max - min) / 6 for 2 bits, and the rounding of the scale and of the result to bfloat16."""
    bits, shape = case
    x = data.draw(arrays.arrays(np.float32, shape, elements=FINITE)).astype(BF16)
    codes, restored = round_trip(bits, shape)(x)
    assert codes.codes.shape == (sizes.groups(prod(shape)), 16 * bits)
    assert (codes.codes.dtype, codes.scale.dtype, codes.minimum.dtype) == (
        jnp.int32,
        jnp.bfloat16,
        jnp.bfloat16,
    )
    assert (restored.dtype, restored.shape) == (jnp.bfloat16, shape)
    for before, after in zip(groups_in(x), groups_in(restored), strict=True):
        extent = before.max() - before.min()
        rounding = 2.0**-8 * (extent + np.abs(before).max()) + 1e-37
        if extent / (2**bits - 1) < np.finfo(np.float32).tiny:
            rounding += extent  # a CPU rounds such a scale to 0
        assert np.abs(after - before).max() <= extent / (2 * (2**bits - 1)) + rounding


@pytest.mark.parametrize("bits", BITS)
def test_codes_are_the_nearest_of_equally_spaced_values(bits: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(WHOLE).astype(BF16)
    codes, _ = round_trip(bits, x.shape)(x)
    values = unpack(codes.codes, bits)
    scale, minimum = (np.asarray(part).astype(np.float64) for part in codes[1:])
    for number, group in enumerate(groups_in(x)):
        assert minimum[number] == group.min()
        assert scale[number] == pytest.approx(
            (group.max() - group.min()) / (2**bits - 1), rel=2**-8
        )
        steps = (group - minimum[number]) / scale[number]
        distance = np.abs(np.asarray(values[number]) - np.minimum(steps, 2**bits - 1))
        assert distance.max() <= 0.5 + 1e-4


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [0.0, -3.5, 1e-40, 3e38])
def test_constant_groups_are_exact(bits: int, value: float) -> None:
    x = np.full(WHOLE, value, BF16)
    _, restored = round_trip(bits, x.shape)(x)
    # XLA's CPU backend and GPUs may replace a denormal by zero.
    assert np.asarray(restored).astype(np.float32) == pytest.approx(x.astype(np.float32), abs=1e-38)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_group_with_a_value_that_is_not_finite_becomes_nan(bits: int, value: float) -> None:
    x = np.random.default_rng(1).standard_normal(WHOLE).astype(BF16)
    x.reshape(-1, 512)[1, 77] = value
    _, restored = round_trip(bits, x.shape)(x)
    groups = np.asarray(restored).reshape(-1, 512).astype(np.float32)
    assert np.isnan(groups).all(axis=1).tolist() == [False, True, *4 * [False]]
    assert np.isfinite(np.delete(groups, 1, axis=0)).all()


@pytest.mark.parametrize("bits", BITS)
def test_fields_of_words_are_in_the_documented_order(bits: int) -> None:
    values = np.random.default_rng(2).integers(0, 2**bits, (3, 512), np.uint32)
    words = pack(jnp.asarray(values), bits)
    length = 16 * bits
    assert words.shape == (3, length)
    unsigned = np.asarray(words).view(np.uint32)
    for element in (0, 1, length - 1, length, 200, 511):
        field = unsigned[:, element % length] >> (bits * (element // length))
        assert (field & (2**bits - 1) == values[:, element]).all()
    assert (np.asarray(unpack(words, bits)) == values).all()


def test_words_of_masks_hold_every_32nd_element() -> None:
    mask = np.random.default_rng(8).integers(0, 2, (3, 512)).astype(bool)
    words = np.asarray(pack_mask(jnp.asarray(mask))).view(np.uint16)
    for element in (0, 1, 31, 32, 200, 511):
        assert ((words[:, element % 32] >> (element // 32)) & 1 == mask[:, element]).all()


@settings(deadline=None, max_examples=30)
@given(st.data(), st.sampled_from(SHAPES))
def test_masks_survive_packing(data: st.DataObject, shape: tuple[int, ...]) -> None:
    mask = data.draw(arrays.arrays(np.bool_, shape))
    packed, unpacked = mask_round_trip(shape)(mask)
    assert (packed.shape, packed.dtype) == ((sizes.groups(prod(shape)), 32), jnp.int16)
    assert (np.asarray(unpacked) == mask).all()


def low_and_upsampled(x: Any) -> tuple[Any, Any]:
    low = low_frequency(x)
    return low, upsample(low, x.shape[1:3])


@pytest.mark.parametrize(("height", "width"), [(7, 7), (14, 8)])
def test_low_frequency_is_the_average_of_whole_squares(height: int, width: int) -> None:
    x = np.random.default_rng(3).standard_normal((2, height, width, 5)).astype(BF16)
    low, upsampled = jax.jit(low_and_upsampled)(x)
    h, w = height // 3, width // 3
    assert (low.shape, low.dtype) == ((2, h, w, 5), jnp.float8_e4m3fn)
    squares = x[:, : 3 * h, : 3 * w].astype(np.float64).reshape(2, h, 3, w, 3, 5)
    mean = squares.mean(axis=(2, 4))
    # A float8 has 3 bits of mantissa; its denormals are multiples of 2**-9.
    assert (np.abs(np.asarray(low).astype(np.float64) - mean) <= np.abs(mean) / 16 + 2**-10).all()
    spread = np.asarray(upsampled).astype(np.float64)
    for row in range(height):
        for column in range(width):
            nearest = np.asarray(low)[:, row * h // height, column * w // width]
            assert (spread[:, row, column] == nearest.astype(np.float64)).all()


def test_low_frequency_saturates_and_keeps_nan() -> None:
    x = np.zeros((1, 3, 6, 1), BF16)
    x[0, 0, 0], x[0, 0, 3] = 1e9, np.nan
    low = np.asarray(jax.jit(low_frequency)(x)).astype(np.float32).ravel()
    assert low[0] == 448
    assert np.isnan(low[1])


def test_an_image_without_a_whole_square_has_no_low_frequencies() -> None:
    low, upsampled = jax.jit(low_and_upsampled)(jnp.ones((2, 2, 5, 4), jnp.bfloat16))
    assert low.shape == (2, 0, 1, 4)
    assert not np.asarray(upsampled).any()


@pytest.mark.parametrize("shape", [(1, 7, 10, 2)])
def test_pooling_matches_xla_and_its_gradient(shape: tuple[int, int, int, int]) -> None:
    rng = np.random.default_rng(4)
    # All different, so that XLA's choice among equal elements does not matter.
    x = jnp.asarray(rng.permutation(prod(shape)).reshape(shape).astype(np.float32))

    def pool(x: Any) -> Any:
        window, padding = (1, 3, 3, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, (1, 2, 2, 1), padding)

    expected, pull_back = jax.vjp(pool, x)
    y, offsets = jax.jit(max_pool_with_offsets)(x)
    assert (y == expected).all()
    assert y.shape == pooled_shape(shape)
    assert offsets.dtype == jnp.int8
    assert 0 <= int(offsets.min()) <= int(offsets.max()) <= 8
    dy = jnp.asarray(rng.integers(-9, 9, y.shape).astype(np.float32))
    dx = jax.jit(partial(max_pool_gradient, shape=shape))(dy, offsets)
    assert (dx == pull_back(dy)[0]).all()


def test_pooling_takes_the_first_of_equal_elements_and_propagates_nan() -> None:
    x = np.ones((1, 4, 4, 1), np.float32)
    pool = jax.jit(max_pool_with_offsets)
    _, offsets = pool(x)
    # The first element of a window that is inside the image.
    assert np.asarray(offsets).ravel().tolist() == [4, 3, 1, 0]
    x[0, 0, 0] = np.nan
    y, offsets = pool(x)
    assert np.isnan(np.asarray(y).ravel()).tolist() == [True, False, False, False]
    assert int(offsets[0, 0, 0, 0]) == 4


def test_compression_is_deterministic() -> None:
    x = np.random.default_rng(7).standard_normal(WHOLE).astype(BF16)
    first, second = (round_trip(2, x.shape)(x) for _ in range(2))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("bits", [0, 1, 3, 16])
def test_unsupported_bits_are_errors(bits: int) -> None:
    with pytest.raises(ValueError, match=rf"bits: expected one of \(2, 4, 8\); found {bits}"):
        jax.eval_shape(partial(quantise, bits=bits), array(512))


def test_unsupported_arrays_are_errors() -> None:
    two_bits = partial(quantise, bits=2)
    with pytest.raises(ValueError, match=r"expected a bfloat16 array .*; found float32"):
        jax.eval_shape(two_bits, array(512, dtype=jnp.float32))
    with pytest.raises(ValueError, match="expected at least one element"):
        jax.eval_shape(two_bits, array(0, 4))
    codes = jax.eval_shape(two_bits, array(1024))
    with pytest.raises(ValueError, match=r"shape \(512,\) has 1 groups of 512 elements; found 2"):
        jax.eval_shape(lambda codes: dequantise(codes, (512,)), codes)
    half = codes._replace(codes=array(2, 16, dtype=jnp.int32))
    with pytest.raises(ValueError, match=r"expected one of \(32, 64, 128\); found 16"):
        jax.eval_shape(lambda codes: dequantise(codes, (1024,)), half)
    y, offsets = jax.eval_shape(max_pool_with_offsets, array(1, 8, 8, 1))
    with pytest.raises(ValueError, match=r"input of shape \(1, 10, 8, 1\) gives \(1, 5, 4, 1\)"):
        jax.eval_shape(partial(max_pool_gradient, shape=(1, 10, 8, 1)), y, offsets)


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("shape", [(3, 7, 7, 20), (2, 16, 16, 4)])
def test_bytes_are_those_of_the_arrays(shape: tuple[int, int, int, int]) -> None:
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def bytes_of(function: Any) -> int:
        leaves = jax.tree.leaves(jax.eval_shape(function, x))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    for bits in BITS:
        assert bytes_of(partial(quantise, bits=bits)) == sizes.code_bytes(prod(shape), bits)
    assert bytes_of(lambda x: pack_mask(x > 0)) == sizes.mask_bytes(prod(shape))
    assert bytes_of(low_frequency) == sizes.low_bytes(shape)
    offsets = bytes_of(lambda x: max_pool_with_offsets(x)[1])
    assert offsets == prod(pooled_shape(shape))
