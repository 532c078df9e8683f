"""What a data set provides, and which one an option names. Imports no jax."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from xlapipe import XlapipeError

DIGITS = "digits"
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]


@runtime_checkable
class Dataset(Protocol):
    """Images of one size with labels."""

    @property
    def labels(self) -> Labels:
        """Class numbers, int32 [K], from 0 to `classes - 1`."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    def images(self, indices: Sequence[int]) -> Images:
        """The images of these indices, uint8 [N, S, S, 3]."""


def load_dataset(name: str, image_size: int) -> tuple[Dataset, Dataset]:
    """The images to train on, and those to test on.

    Args:
      name: `digits`, an .npz file, or a folder of image files.
      image_size: S, the height and width of the images in pixels.

    Raises:
      XlapipeError: not a data set; or an image that cannot be read.
    """
    from models.compressed_resnet.data.arrays import digits, read_npz
    from models.compressed_resnet.data.folder import read_folder

    if name == DIGITS:
        return digits(image_size)
    path = Path(name)
    if path.is_dir():
        return read_folder(path, image_size)
    if path.suffix == ".npz" and path.is_file():
        return read_npz(path, image_size)
    raise XlapipeError(
        f"--data {name}: expected {DIGITS!r}, an .npz file, or a folder with a folder of images "
        "for each class; found none of these"
    )
