"""Pallas kernels that read and write compressed activations, for GPUs.

    tiles.py          groups as tiles, their codes, and where their channels are
    norm.py           batch norm, ReLU, its mask, and codes of the normalised values
    residual.py       codes of the difference from the low-frequency component, and the inverse
    sums.py           sums of a batch norm's gradient

Each has a twin in conv_norm.py that XLA compiles to fusions, for other platforms and other shapes.
"""

from models.compressed_resnet.kernels.norm import Affine, norm_relu_codes
from models.compressed_resnet.kernels.residual import quantise_residual, restore
from models.compressed_resnet.kernels.sums import norm_sums
from models.compressed_resnet.kernels.tiles import supports

__all__ = [
    "Affine",
    "norm_relu_codes",
    "norm_sums",
    "quantise_residual",
    "restore",
    "supports",
]
