"""Training steps of this repository's ResNet-50: plain, with 2 bits, and with jax.checkpoint."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from resnet_cases import BATCH, CASE, CLASSES
from timing import Timing, print_timings, timed

from models.compressed_resnet.sizes import ResNetConfig
from models.compressed_resnet.step import abstract_state, initial_state, train_step

VARIANTS = {
    "plain": ResNetConfig(classes=CLASSES, bits=None),
    "2 bits": ResNetConfig(classes=CLASSES, bits=2),
    "jax.checkpoint": ResNetConfig(classes=CLASSES, bits=None, save="block_inputs"),
    "2 bits, block inputs": ResNetConfig(classes=CLASSES, bits=2, save="block_inputs"),
}


def compiled(config: ResNetConfig) -> Any:
    """The step's executable; the state is donated."""
    images = jax.ShapeDtypeStruct((BATCH, config.image, config.image, 3), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    step = jax.jit(train_step(config), donate_argnums=0)
    return step.lower(abstract_state(config), images, labels).compile()


def caller(config: ResNetConfig, step: Any) -> Callable[[int], Any]:
    """A function that takes a step on the same images, with the weights after the call before."""
    keys = jax.random.split(jax.random.key(0), 2)
    images = jax.random.normal(keys[0], (BATCH, config.image, config.image, 3), jnp.bfloat16)
    labels = jax.random.randint(keys[1], (BATCH,), 0, config.classes, jnp.int32)
    state = initial_state(config)

    def call(_: int) -> Any:
        nonlocal state
        state, metrics = step(state, images, labels)
        return metrics

    return call


def timings() -> Iterator[Timing]:
    """Compiles in threads, since most of a compile is on one core; then times one after another.

    The first step is compiled alone: XLA tunes its convolutions with nothing else on the GPU, and
    the other steps, which have the same ones, find the results.
    """
    first, *others = VARIANTS.values()
    steps = [compiled(first)]
    with ThreadPoolExecutor(len(others)) as pool:
        steps += pool.map(compiled, others)
    for (name, config), step in zip(VARIANTS.items(), steps, strict=True):
        call = caller(config, step)
        yield timed(CASE, name, call, jax.block_until_ready, calls=10, samples=5)


if __name__ == "__main__":
    device = jax.devices("gpu")[0].device_kind
    print_timings(framework=f"jax {jax.__version__}", device=device, timings=timings())
