"""Compression of what a backward pass needs: arrays in NHWC order, plain functions for `jax.jit`.

    groups.py        groups of 512 elements, and fields of a few bits in 32-bit words
    codes.py         codes of 2, 4 or 8 bits, with a scale and a minimum for each group
    masks.py         one bit for each element
    averages.py      the low-frequency component: 3×3 averages in float8, and their upsampling
    pooling.py       max pooling that keeps the position of each maximum, one byte each

The bytes that each keeps are in sizes.py. Axis letters: N images, H and W pixels, C channels, M
groups, L words of a group.
"""

from models.compressed_resnet.compression.averages import low_frequency, upsample
from models.compressed_resnet.compression.codes import Codes, dequantise, quantise
from models.compressed_resnet.compression.masks import pack_mask, unpack_mask
from models.compressed_resnet.compression.pooling import max_pool_gradient, max_pool_with_offsets

__all__ = [
    "Codes",
    "dequantise",
    "low_frequency",
    "max_pool_gradient",
    "max_pool_with_offsets",
    "pack_mask",
    "quantise",
    "unpack_mask",
    "upsample",
]
