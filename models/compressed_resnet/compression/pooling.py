"""Max pooling, 3×3 with stride 2 and padding 1, that keeps one byte for each maximum."""

from collections.abc import Iterator

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int8, Int32, Shaped

SIDE = 3
STRIDE = 2
PADDING = 1
# Times 3 or 1, plus a position: below every offset.
_NOWHERE = -40


def pooled_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape of the maxima of an array [N, H, W, C]."""
    images, height, width, channels = shape
    return images, (height + 1) // STRIDE, (width + 1) // STRIDE, channels


def max_pool_with_offsets(
    x: Float[Array, "N H W C"],
) -> tuple[Float[Array, "N h w C"], Int8[Array, "N h w C"]]:
    """The maxima, and the position of each in its window: 3 * row + column, 0 to 8.

    Of equal elements the first is taken. A NaN is larger than any number.
    """
    windows = _windows(x)
    best = next(windows)
    offsets = jnp.zeros(best.shape, jnp.int8)
    for offset, candidate in enumerate(windows, 1):
        # Negated, so that a NaN candidate is taken; XLA would write `isnan` of every pixel.
        larger = ~(best >= candidate) & ~jnp.isnan(best)
        best = jnp.where(larger, candidate, best)
        offsets = jnp.where(larger, jnp.int8(offset), offsets)
    return best, offsets


def max_pool_gradient(
    dy: Float[Array, "N h w C"],
    offsets: Int8[Array, "N h w C"],
    shape: tuple[int, int, int, int],
) -> Float[Array, "N H W C"]:
    """The gradient of an input of `shape`: each maximum's gradient, added at its position.

    A pixel is in one or two windows by row, and in one or two by column. Their gradients are
    selected and added, without a scatter.

    Raises:
      ValueError: pooling an array of this shape gives another one than dy's.
    """
    if pooled_shape(shape) != dy.shape or offsets.shape != dy.shape:
        raise ValueError(
            f"pooling an input of shape {shape} gives {pooled_shape(shape)}; found a gradient of "
            f"shape {dy.shape} and offsets of shape {offsets.shape}"
        )
    height, width = shape[1:3]
    dx = jnp.zeros(shape, jnp.float32)
    for row in (0, 1):
        for column in (0, 1):
            expected = 3 * _position(height, row)[:, None] + _position(width, column)
            chosen = _spread(offsets, row, column, shape).astype(jnp.int32) == expected[..., None]
            gradient = _spread(dy, row, column, shape).astype(jnp.float32)
            dx = dx + jnp.where(chosen, gradient, 0)
    return dx.astype(dy.dtype)


def _windows(x: Float[Array, "N H W C"]) -> Iterator[Float[Array, "N h w C"]]:
    """The first, second, … element of every window; -inf beyond the image."""
    images, height, width, channels = pooled_shape(x.shape)
    margin = (PADDING, PADDING)
    padded = jnp.pad(x, ((0, 0), margin, margin, (0, 0)), constant_values=-jnp.inf)
    for row in range(SIDE):
        for column in range(SIDE):
            limits = (images, row + STRIDE * height - 1, column + STRIDE * width - 1, channels)
            yield lax.slice(padded, (0, row, column, 0), limits, (1, STRIDE, STRIDE, 1))


def _position(pixels: int, window: int) -> Int32[Array, " P"]:
    """The position of each pixel of a row (or column) in its first (0) or second (1) window.

    Even pixels are in one window only: for the second, a number that no offset has.
    """
    odd = jnp.arange(pixels) % 2
    return odd + 1 if window == 0 else jnp.where(odd == 1, 0, _NOWHERE)


def _spread(
    t: Shaped[Array, "N h w C"], row: int, column: int, shape: tuple[int, int, int, int]
) -> Shaped[Array, "N H W C"]:
    """For each pixel, the element of `t` of its first or second window, by row and by column."""
    images, height, width, channels = t.shape
    # Zeros after the last window, which no pixel selects.
    shifted = jnp.pad(t[:, row:, column:], ((0, 0), (0, row), (0, column), (0, 0)))
    pairs = (images, height, STRIDE, width, STRIDE, channels)
    repeated = jnp.broadcast_to(shifted[:, :, None, :, None], pairs)
    pixels = repeated.reshape(images, STRIDE * height, STRIDE * width, channels)
    return pixels[:, : shape[1], : shape[2]]
