"""The order of images, as a function of seed and step: a run can resume at any step. No jax."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from models.compressed_resnet.data.dataset import Dataset, Images, Labels
from xlapipe import XlapipeError


def check_batch(batch: int, count: int) -> None:
    """Raises XlapipeError if a batch has more images than the data set."""
    if batch > count:
        raise XlapipeError(
            f"--batch {batch}: expected at most {count:,}, the number of images to train on"
        )


def batch_indices(count: int, batch: int, seed: int, step: int) -> list[int]:
    """Indices of the images of a step.

    Each epoch takes `count // batch` batches of a permutation that seed and epoch determine; the
    remaining images are left out.
    """
    epoch, position = divmod(step, count // batch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    indices: list[int] = order[position * batch :][:batch].tolist()
    return indices


def training_batches(
    dataset: Dataset, batch: int, seed: int, steps: range
) -> Iterator[tuple[Images, Labels]]:
    """The batches of consecutive steps; the next one is read in a thread.

    Raises:
      XlapipeError: an image cannot be read.
    """
    count = len(dataset.labels)

    def read(step: int) -> tuple[Images, Labels]:
        indices = batch_indices(count, batch, seed, step)
        return dataset.images(indices), dataset.labels[indices]

    with ThreadPoolExecutor(1) as pool:
        upcoming = [pool.submit(read, step) for step in steps[:1]]
        for step in steps:
            current = upcoming.pop()
            if step + 1 in steps:
                upcoming.append(pool.submit(read, step + 1))
            yield current.result()
