"""Trains ResNet-50 on scikit-learn's digits with and without compression; compares gradients.

    PYTHONPATH=. python tests/gpu/resnet_training.py OUT.json [--steps N] [--image-size S] …

Needs a GPU. Three seeds of the network without compression and with 2 bits, on the same images in
the same order: losses and accuracy. Then gradients of each layer, early in training and after it,
in bfloat16 and with 8, 4 and 2 bits, against float32. (Before training most gradients are zero,
since blocks start as their shortcuts.)
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from provenance import provenance

from models.compressed_resnet.cli.options import Settings, add_options, settings_of
from models.compressed_resnet.data.arrays import digits
from models.compressed_resnet.data.batches import batch_indices, training_batches
from models.compressed_resnet.network import apply, cross_entropy
from models.compressed_resnet.sizes import ResNetConfig
from models.compressed_resnet.step import abstract_state
from models.compressed_resnet.trainer import Trainer, normalised

SEEDS = (0, 1, 2)
# Of scikit-learn's digits.
CLASSES = 10
# Steps before the parameters are kept for the first comparison of gradients.
EARLY = 20
TRAINED = {"plain": None, "2 bits": 2}
COMPARED = {"bfloat16": None, "8 bits": 8, "4 bits": 4, "2 bits": 2}


def trained(settings: Settings) -> tuple[list[dict[str, Any]], Any, Any]:
    """The runs of one network; parameters of the first run after `EARLY` steps and at its end."""
    training, testing = digits(settings.config.image)
    trainer = Trainer(settings)
    runs, kept = [], []
    for seed in SEEDS:
        trainer.settings = replace(settings, seed=seed)
        trainer.initialise()
        batches = training_batches(training, settings.batch, seed, range(settings.steps))
        losses = []
        for number, (images, labels) in enumerate(batches):
            if number == EARLY and not runs:
                kept.append(jax.tree.map(np.asarray, trainer.state["parameters"]))
            losses.append(trainer.step(images, labels))
        runs.append(
            {
                "seed": seed,
                "losses": [round(float(loss), 5) for loss in losses],
                "test_accuracy": trainer.accuracy(testing),
            }
        )
        if len(runs) == 1:
            kept.append(jax.tree.map(np.asarray, trainer.state["parameters"]))
    return runs, *kept


def gradient_of(config: ResNetConfig, dtype: Any) -> Any:
    """A function of parameters, pixels and labels."""

    def gradient(parameters: Any, pixels: Any, labels: Any) -> Any:
        def loss(parameters: Any) -> Any:
            logits, _ = apply(config, parameters, normalised(pixels).astype(dtype))
            return cross_entropy(logits, labels)

        return jax.grad(loss)(parameters)

    return gradient


class GradientProcess:
    """A process that compiles the gradient of one kind, and then computes it of any parameters.

    Each kind has its own, since tracing takes longer than compiling, and one process traces on one
    core.
    """

    _run: Any = None

    def __init__(self, config: ResNetConfig, batch: int, bits: int | None, dtype: Any) -> None:
        self._pool = one_process()
        self._compiled = self._pool.submit(_compile, config, batch, bits, dtype)

    def of(self, parameters: Any) -> Future[Any]:
        """The gradient, as NumPy arrays."""
        return self._pool.submit(_evaluate, parameters)

    def wait(self) -> None:
        """Raises what the compile raised."""
        self._compiled.result()


def one_process() -> ProcessPoolExecutor:
    """A process that starts jax anew."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _compile(config: ResNetConfig, batch: int, bits: int | None, dtype: Any) -> None:
    training, _ = digits(config.image)
    indices = batch_indices(len(training.labels), batch, 0, 0)
    pixels, labels = jnp.asarray(training.images(indices)), jnp.asarray(training.labels[indices])
    gradient = jax.jit(gradient_of(replace(config, bits=bits), dtype))
    # Without it a GPU rounds the operands of float32 convolutions to TF32.
    with jax.default_matmul_precision("highest"):
        executable = gradient.lower(abstract_state(config)["parameters"], pixels, labels).compile()
    GradientProcess._run = lambda parameters: executable(parameters, pixels, labels)


def _evaluate(parameters: Any) -> Any:
    return jax.tree.map(np.asarray, GradientProcess._run(jax.tree.map(jnp.asarray, parameters)))


def compared_gradients(
    kinds: Mapping[str, GradientProcess], parameters: Any
) -> dict[str, list[dict[str, Any]]]:
    """Relative error and cosine of each parameter's gradient, by kind, against the first kind."""
    gradients = {name: kind.of(parameters) for name, kind in kinds.items()}
    exact, *others = (gradient.result() for gradient in gradients.values())
    names = list(kinds)[1:]
    return {name: list(compared(exact, other)) for name, other in zip(names, others, strict=True)}


def compared(exact: Any, actual: Any) -> Iterator[dict[str, Any]]:
    """Relative error and cosine of each leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(exact)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(actual), strict=True):
        a, b = (np.asarray(part, np.float64).ravel() for part in (leaf, other))
        norm = float(np.linalg.norm(a))
        yield {
            "parameter": jax.tree_util.keystr(path, simple=True, separator="."),
            "relative_error": round(float(np.linalg.norm(b - a)) / norm, 6),
            "cosine": round(float(a @ b) / (norm * float(np.linalg.norm(b))), 6),
        }


def compact(text: str) -> str:
    """Indented JSON with the innermost lists and objects on one line each."""
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda match: " ".join(match[0].split()), text)


def main() -> None:
    """Runs both parts, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gradient-image-size", type=int, default=224)
    parser.add_argument("--gradient-batch", type=int, default=32)
    add_options(parser)
    parser.set_defaults(image_size=128, batch=64, steps=300, schedule="cosine", learning_rate=0.05)
    options = parser.parse_args()
    if options.steps <= EARLY:
        parser.error(f"--steps {options.steps}: expected at least {EARLY + 1}")
    settings = settings_of(options, CLASSES)
    config = replace(settings.config, image=options.gradient_image_size)
    gradient_kinds = {"float32": (None, jnp.float32)}
    gradient_kinds |= {name: (bits, jnp.bfloat16) for name, bits in COMPARED.items()}
    kinds = {
        name: GradientProcess(config, options.gradient_batch, bits, dtype)
        for name, (bits, dtype) in gradient_kinds.items()
    }
    training = {
        name: one_process().submit(
            trained, replace(settings, config=replace(settings.config, bits=bits))
        )
        for name, bits in TRAINED.items()
    }
    results = {name: future.result() for name, future in training.items()}
    for kind in kinds.values():
        kind.wait()
    record: dict[str, Any] = {
        "options": settings.identity,
        "runs": {name: runs for name, (runs, *_) in results.items()},
        "gradients": {
            f"after {EARLY} steps": compared_gradients(kinds, results["plain"][1]),
            "after training": compared_gradients(kinds, results["plain"][2]),
        },
    }
    for name, seeds in record["runs"].items():
        print(name, [round(run["test_accuracy"], 4) for run in seeds], flush=True)
    for state, rows_of_kinds in record["gradients"].items():
        for name, rows in rows_of_kinds.items():
            kernels = [row for row in rows if row["parameter"].endswith("kernel")]
            errors, cosines = (
                [row[key] for row in kernels] for key in ("relative_error", "cosine")
            )
            print(state, name, np.median(errors), max(errors), min(cosines), flush=True)
    text = json.dumps({**provenance({"jax": jax.__version__}), **record}, indent=1)
    options.out.write_text(compact(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
