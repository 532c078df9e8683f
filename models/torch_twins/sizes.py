"""Shapes of ResNet-18's kernels. Imports no jax, so that expectations do not need it."""

from collections.abc import Iterator

# Channels of the four stages, each of two blocks; all but the first halve the image.
STAGES = (64, 128, 256, 512)
IMAGE = (8, 3, 224, 224)
CLASSES = 100


def kernel_shapes() -> Iterator[tuple[int, int, int, int]]:
    """Shapes [out, in, height, width] in the order in which the convolutions run."""
    yield STAGES[0], IMAGE[1], 7, 7
    channels = STAGES[0]
    for width in STAGES:
        for _ in range(2):
            yield width, channels, 3, 3
            yield width, width, 3, 3
            if channels != width:
                yield width, channels, 1, 1
            channels = width
