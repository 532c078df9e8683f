"""Bytes that compressed arrays take, in closed form. Imports no jax."""

from math import prod

# Elements of a group, which share a scale and a minimum.
GROUP = 512
WORD_BITS = 32
# Bits of a code that are supported.
CODE_BITS = (2, 4, 8)
# The side of a square of pixels whose average is kept.
LOW_FREQUENCY_SIDE = 3
_SCALE_AND_MINIMUM = 2 + 2


def groups_of(shape: tuple[int, ...]) -> int:
    """Number of groups of an array; the last one may be incomplete."""
    return -(-prod(shape) // GROUP)


def codes_bytes(shape: tuple[int, ...], bits: int) -> int:
    """Codes, scales and minima of an array."""
    return groups_of(shape) * (GROUP * bits // 8 + _SCALE_AND_MINIMUM)


def mask_bytes(shape: tuple[int, ...]) -> int:
    """One bit for each element of an array."""
    return groups_of(shape) * GROUP // 8


def low_frequency_shape(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """[N, H // 3, W // 3, C], for an array [N, H, W, C]."""
    images, height, width, channels = shape
    side = LOW_FREQUENCY_SIDE
    return images, height // side, width // side, channels


def low_frequency_bytes(shape: tuple[int, int, int, int]) -> int:
    """The float8 averages of an array [N, H, W, C]."""
    return prod(low_frequency_shape(shape))


def pooled_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape after max pooling 3×3 with stride 2 and padding 1."""
    images, height, width, channels = shape
    return images, (height + 1) // 2, (width + 1) // 2, channels


def pool_offsets_bytes(shape: tuple[int, int, int, int]) -> int:
    """The int8 offsets of max pooling an array [N, H, W, C]."""
    return prod(pooled_shape(shape))
