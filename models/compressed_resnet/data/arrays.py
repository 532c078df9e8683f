"""Data sets in memory. Imports no jax."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.compressed_resnet.data.dataset import Images, Labels
from xlapipe import XlapipeError

# Every fifth image is kept for testing.
TEST_EVERY = 5


@dataclass(frozen=True)
class ArrayDataset:
    """Images in memory, of any size; resized by the nearest pixel when they are taken.

    Attributes:
      pixels: uint8 [K, H, W, 3], or [K, H, W] in grey.
    """

    pixels: Images
    labels: Labels
    classes: int
    image_size: int

    def images(self, indices: Sequence[int]) -> Images:
        """The images of these indices, uint8 [N, S, S, 3]."""
        taken = self.pixels[np.asarray(indices)]
        rows, columns = (
            np.arange(self.image_size) * side // self.image_size for side in taken.shape[1:3]
        )
        resized = taken[:, rows][:, :, columns]
        if resized.ndim == 3:
            resized = np.repeat(resized[..., None], 3, axis=-1)
        return np.ascontiguousarray(resized)


def digits(image_size: int) -> tuple[ArrayDataset, ArrayDataset]:
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels.

    Raises:
      XlapipeError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise XlapipeError(
            "--data digits needs scikit-learn; fix: pip install scikit-learn"
        ) from None
    bunch = load_digits()
    # Grey levels are 0 to 16.
    pixels = (bunch.images * (255 / 16)).astype(np.uint8)
    return split(pixels, bunch.target.astype(np.int32), image_size)


def read_npz(path: Path, image_size: int) -> tuple[ArrayDataset, ArrayDataset]:
    """The arrays `images` and `labels` of an .npz file.

    Raises:
      XlapipeError: an array is missing, or has another shape or dtype.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("images", "labels")}
    # A TypeError: the file is one array, as numpy.save writes it.
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise XlapipeError(
            f"{path}: expected arrays named 'images' and 'labels'; found {error}; "
            "fix: numpy.savez(path, images=…, labels=…)"
        ) from None
    images, labels = arrays["images"], arrays["labels"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise XlapipeError(
            f"{path}: images: expected uint8 [K, H, W, 3] or [K, H, W]; found "
            f"{images.dtype} {list(images.shape)}"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
        raise XlapipeError(
            f"{path}: labels: expected {len(images)} integers, one for each image; found "
            f"{labels.dtype} {list(labels.shape)}"
        )
    if labels.size == 0 or labels.min() < 0:
        raise XlapipeError(
            f"{path}: labels: expected class numbers from 0; found "
            f"{labels.min() if labels.size else 'no labels'}"
        )
    return split(images, labels.astype(np.int32), image_size)


def split(
    pixels: Images, labels: npt.NDArray[np.int32], image_size: int
) -> tuple[ArrayDataset, ArrayDataset]:
    """The images to train on, and every fifth, to test on."""
    test = np.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
    classes = int(labels.max()) + 1
    training, testing = (
        ArrayDataset(pixels[part], labels[part], classes, image_size) for part in (~test, test)
    )
    return training, testing
