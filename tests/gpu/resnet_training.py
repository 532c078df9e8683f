"""Trains ResNet-50 on scikit-learn's digits with and without compression; compares gradients.

    PYTHONPATH=. python tests/gpu/resnet_training.py OUT.json [--steps N] [--image-size S] …

Needs a GPU. Three seeds of the network without compression and with 2 bits, on the same images in
the same order: losses and accuracy. Then gradients of each layer, before and after training, in
bfloat16 and with 8, 4 and 2 bits, against float32.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.compressed_resnet.cli.options import add_options, settings_of
from models.compressed_resnet.data.arrays import digits
from models.compressed_resnet.data.batches import batch_indices, training_batches
from models.compressed_resnet.network import apply, cross_entropy
from models.compressed_resnet.sizes import ResNetConfig
from models.compressed_resnet.step import State
from models.compressed_resnet.trainer import Trainer, normalised
from xlapipe.dumps.run_record import run_record
from xlapipe.environment.machine import Machine

SEEDS = (0, 1, 2)
TRAINED = {"plain": None, "2 bits": 2}
COMPARED = {"bfloat16": None, "8 bits": 8, "4 bits": 4, "2 bits": 2}


def trained(settings: Any) -> tuple[list[dict[str, Any]], State]:
    """The runs of one network, and the state after the first."""
    training, testing = digits(settings.config.image)
    trainer = Trainer(settings)
    runs, first = [], None
    for seed in SEEDS:
        trainer.settings = replace(settings, seed=seed)
        trainer.initialise()
        batches = training_batches(training, settings.batch, seed, range(settings.steps))
        losses = [trainer.step(images, labels) for images, labels in batches]
        runs.append(
            {
                "seed": seed,
                "losses": [round(float(loss), 5) for loss in losses],
                "test_accuracy": trainer.accuracy(testing),
            }
        )
        first = trainer.state if first is None else first
    assert first is not None
    return runs, first


def gradient_of(config: ResNetConfig, dtype: Any) -> Any:
    """A function of parameters, pixels and labels."""

    def gradient(parameters: Any, pixels: Any, labels: Any) -> Any:
        def loss(parameters: Any) -> Any:
            logits, _ = apply(config, parameters, normalised(pixels).astype(dtype))
            return cross_entropy(logits, labels)

        return jax.grad(loss)(parameters)

    return gradient


@dataclass(frozen=True)
class Comparison:
    """Gradients of one batch, in float32 and in each of the compared ways.

    Attributes:
      executables: functions of parameters, pixels and labels.
    """

    pixels: Any
    labels: Any
    executables: dict[str, Any]

    def of(self, parameters: Any) -> dict[str, list[dict[str, Any]]]:
        """Relative error and cosine of each parameter's gradient, by kind."""
        exact, *others = (
            run(parameters, self.pixels, self.labels) for run in self.executables.values()
        )
        names = list(self.executables)[1:]
        return {
            name: list(compared(exact, other)) for name, other in zip(names, others, strict=True)
        }


def comparison_of(config: ResNetConfig, batch: int, parameters: Any) -> Comparison:
    """Compiles the gradients in threads."""
    training, _ = digits(config.image)
    indices = batch_indices(len(training.labels), batch, 0, 0)
    pixels, labels = jnp.asarray(training.images(indices)), jnp.asarray(training.labels[indices])
    kinds: dict[str, Any] = {"float32": (None, jnp.float32)}
    kinds |= {name: (bits, jnp.bfloat16) for name, bits in COMPARED.items()}

    def compiled(kind: tuple[int | None, Any]) -> Any:
        bits, dtype = kind
        gradient = jax.jit(gradient_of(replace(config, bits=bits), dtype))
        # Without it a GPU rounds the operands of float32 convolutions to TF32.
        with jax.default_matmul_precision("highest"):
            return gradient.lower(parameters, pixels, labels).compile()

    with ThreadPoolExecutor(len(kinds)) as pool:
        executables = dict(zip(kinds, pool.map(compiled, kinds.values()), strict=True))
    return Comparison(pixels, labels, executables)


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
    settings = settings_of(options, 10)
    before = Trainer(settings)
    before.initialise()
    parameters = before.state["parameters"]
    config = replace(settings.config, image=options.gradient_image_size)
    runs = [
        replace(settings, config=replace(settings.config, bits=bits)) for bits in TRAINED.values()
    ]
    with ThreadPoolExecutor(len(runs) + 1) as pool:
        comparison = pool.submit(comparison_of, config, options.gradient_batch, parameters)
        results = dict(zip(TRAINED, pool.map(trained, runs), strict=True))
    record: dict[str, Any] = {
        "options": settings.identity,
        "runs": {name: seeds for name, (seeds, _) in results.items()},
        "gradients": {
            "before training": comparison.result().of(parameters),
            "after training": comparison.result().of(results["plain"][1]["parameters"]),
        },
    }
    for name, seeds in record["runs"].items():
        print(name, [round(run["test_accuracy"], 4) for run in seeds], flush=True)
    for state, kinds in record["gradients"].items():
        for name, rows in kinds.items():
            kernels = [row for row in rows if row["parameter"].endswith("kernel")]
            errors, cosines = (
                [row[key] for row in kernels] for key in ("relative_error", "cosine")
            )
            print(state, name, np.median(errors), max(errors), min(cosines), flush=True)
    gpu = Machine.here().gpu()
    provenance = run_record(
        device=gpu.name if gpu is not None else jax.devices()[0].device_kind,
        driver=gpu.driver_version if gpu is not None else None,
        versions={"jax": jax.__version__},
        command=["python", *sys.argv],
    )
    text = json.dumps({**provenance, **record}, indent=1)
    options.out.write_text(compact(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
