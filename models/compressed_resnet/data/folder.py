"""Image files, one folder for each class. Imports no jax; needs Pillow."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from models.compressed_resnet.data.arrays import TEST_EVERY
from models.compressed_resnet.data.dataset import Images, Labels
from xlapipe import XlapipeError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
TRAINING, TESTING = "train", "val"
_READERS = 16


@dataclass(frozen=True)
class FolderDataset:
    """Image files, which are read when they are taken."""

    files: tuple[Path, ...]
    labels: Labels
    classes: int
    image_size: int

    def images(self, indices: Sequence[int]) -> Images:
        """The images of these indices, uint8 [N, S, S, 3].

        Raises:
          XlapipeError: a file is not an image.
        """
        with ThreadPoolExecutor(_READERS) as pool:
            files = [self.files[index] for index in indices]
            read = partial(_read_image, image_size=self.image_size)
            return np.stack(list(pool.map(read, files)))


def read_folder(folder: Path, image_size: int) -> tuple[FolderDataset, FolderDataset]:
    """A folder with a folder of images for each class, in the order of their names.

    If the folder has folders `train` and `val`, those hold the classes; otherwise every fifth image
    is kept for testing.

    Raises:
      XlapipeError: Pillow is not installed, or there are no images.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise XlapipeError(
            f"--data {folder}: reading images needs Pillow; fix: pip install pillow"
        ) from None
    divided = (folder / TRAINING).is_dir() and (folder / TESTING).is_dir()
    names = _class_names(folder / TRAINING if divided else folder)
    if divided:
        parts = [list(_files(folder / part, names)) for part in (TRAINING, TESTING)]
    else:
        labelled = list(_files(folder, names))
        tests = labelled[TEST_EVERY - 1 :: TEST_EVERY]
        del labelled[TEST_EVERY - 1 :: TEST_EVERY]
        parts = [labelled, tests]
    if not all(parts):
        raise XlapipeError(
            f"--data {folder}: expected images to train on and to test on; found "
            f"{len(parts[0])} and {len(parts[1])} ({', '.join(sorted(SUFFIXES))})"
        )
    training, testing = (_dataset(part, len(names), image_size) for part in parts)
    return training, testing


def _dataset(labelled: list[tuple[Path, int]], classes: int, image_size: int) -> FolderDataset:
    files, labels = zip(*labelled, strict=True)
    return FolderDataset(tuple(files), np.asarray(labels, np.int32), classes, image_size)


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def _files(folder: Path, names: list[str]) -> Iterator[tuple[Path, int]]:
    for label, name in enumerate(names):
        for path in sorted((folder / name).glob("*")):
            if path.suffix.lower() in SUFFIXES:
                yield path, label


def _read_image(path: Path, image_size: int) -> Images:
    """The central square, resized."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            side = min(image.size)
            left, top = ((length - side) // 2 for length in image.size)
            box = (left, top, left + side, top + side)
            square = image.convert("RGB").crop(box)
            return np.asarray(square.resize((image_size, image_size)), np.uint8)
    except (OSError, UnidentifiedImageError) as error:
        raise XlapipeError(f"{path}: not an image that Pillow can read: {error}") from None
