"""Expectations about the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from math import prod

from models.torch_twins.sizes import CLASSES, IMAGE, STAGES, kernel_shapes
from xlapipe.expect import Aliased, Expectation, NotAliased, ParameterBytes

BFLOAT16 = 2
FLOAT32 = INT32 = 4


def mlp(batch: int, width: int) -> tuple[Expectation, ...]:
    """Three weights, x and the gradient of y."""
    return (
        ParameterBytes(
            (3 * width * width + 2 * batch * width) * BFLOAT16, because="weights, x and g"
        ),
        NotAliased(because="nothing is donated"),
    )


def transformer(tokens: int, width: int, hidden: int) -> tuple[Expectation, ...]:
    """Two blocks, x and the gradient of y."""
    attention = width + 4 * width * (width + 1)
    mlp = 2 * width + hidden * (width + 1) + width * (hidden + 1)
    return (
        ParameterBytes(
            (2 * (attention + mlp) + 2 * tokens * width) * BFLOAT16,
            because="norms, projections and biases of two blocks, x and g",
        ),
        NotAliased(because="nothing is donated"),
    )


def resnet() -> tuple[Expectation, ...]:
    """Kernels, batch norms, classifier, images and the gradient of the logits."""
    shapes = list(kernel_shapes())
    norms = sum(4 * out for out, *_ in shapes) * FLOAT32 + len(shapes) * INT32
    floats = sum(map(prod, shapes)) + (STAGES[-1] + 1) * CLASSES + prod(IMAGE) + IMAGE[0] * CLASSES
    return (
        ParameterBytes(
            floats * FLOAT32 + norms, because="kernels, batch norms, classifier, images, g"
        ),
        *(
            Aliased(f"rest[*].{field}", because="running statistics are donated")
            for field in ("batches", "mean", "variance")
        ),
    )
