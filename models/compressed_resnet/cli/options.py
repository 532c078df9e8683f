"""The command's options, and the run that they describe. Imports no jax."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.compressed_resnet.sizes import ResNetConfig
from xlapipe import XlapipeError

DEPTHS = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A training run.

    Attributes:
      data: `digits`, an .npz file or a folder.
      schedule: of the learning rate: constant, or a cosine that falls to zero at the last step.
      steps: number of steps from the start of the run, over all its resumptions.
      checkpoints: folder of checkpoints; None to write none.
      save_every: steps between checkpoints.
    """

    config: ResNetConfig
    data: str
    batch: int
    steps: int
    seed: int
    learning_rate: float
    momentum: float
    schedule: Schedule
    checkpoints: Path | None
    save_every: int

    @property
    def identity(self) -> dict[str, Any]:
        """The options that must be the same when a run resumes, by flag."""
        config = self.config
        return {
            "--data": self.data,
            "--blocks": ",".join(map(str, config.blocks)),
            "--width": config.width,
            "--classes": config.classes,
            "--image-size": config.image,
            "--bits": config.bits,
            "--save": config.save,
            "--batch": self.batch,
            "--seed": self.seed,
            "--learning-rate": self.learning_rate,
            "--momentum": self.momentum,
            "--schedule": self.schedule,
            # A schedule that ends depends on the last step.
            "--steps": self.steps if self.schedule == "cosine" else None,
        }


def settings_of(options: argparse.Namespace, data_classes: int) -> Settings:
    """The run that the options describe.

    Args:
      data_classes: number of classes of the images.

    Raises:
      XlapipeError: fewer classes than the images have.
    """
    classes = data_classes if options.classes is None else options.classes
    if classes < data_classes:
        raise XlapipeError(
            f"--classes {classes}: expected at least {data_classes}, the number of classes of "
            f"--data {options.data}"
        )
    config = ResNetConfig(
        blocks=options.blocks or DEPTHS[options.depth],
        width=options.width,
        classes=classes,
        image=options.image_size,
        bits=options.bits,
        save=options.save,
    )
    return Settings(
        config=config,
        data=options.data,
        batch=options.batch,
        steps=options.steps,
        seed=options.seed,
        learning_rate=options.learning_rate,
        momentum=options.momentum,
        schedule=options.schedule,
        checkpoints=options.checkpoints,
        save_every=options.save_every,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a training run."""
    add = parser.add_argument
    add(
        "--data",
        default="digits",
        metavar="DATA",
        help="a folder with a folder of images for each class, an .npz file with arrays `images` "
        "and `labels`, or digits (scikit-learn's); default: digits",
    )
    add("--depth", type=int, choices=DEPTHS, default=50, help="layers of the network; default: 50")
    add(
        "--blocks",
        type=_block_counts,
        metavar="N,N,…",
        help="blocks of each stage, instead of --depth",
    )
    add("--width", type=positive, default=64, metavar="C", help="channels of the stem; default: 64")
    add("--classes", type=positive, metavar="K", help="default: the number in the data")
    add(
        "--image-size",
        type=positive,
        default=224,
        metavar="S",
        help="height and width that images are resized to; default: 224",
    )
    add(
        "--bits",
        type=_bits,
        default=2,
        metavar="2|4|8|none",
        help="bits of a saved activation; none saves them without compression; default: 2",
    )
    add(
        "--save",
        choices=("activations", "block_inputs"),
        default="activations",
        help="what the backward pass reads: activations of every layer, or inputs of blocks, from "
        "which it computes the layers again; default: activations",
    )
    add("--batch", type=positive, default=256, metavar="N", help="images of a step; default: 256")
    add("--steps", type=positive, default=1000, metavar="N", help="default: 1000")
    add("--seed", type=_natural, default=0, help="of weights and the order of images; default: 0")
    add("--learning-rate", type=_positive_float, default=0.1, metavar="R", help="default: 0.1")
    add("--momentum", type=float, default=0.9, metavar="M", help="of SGD; default: 0.9")
    add(
        "--schedule",
        choices=("constant", "cosine"),
        default="constant",
        help="of the learning rate; cosine falls to zero at the last step; default: constant",
    )
    add(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="write checkpoints into DIR, and resume from its last one",
    )
    add(
        "--save-every",
        type=positive,
        default=1000,
        metavar="N",
        help="steps between checkpoints; the last step writes one too; default: 1000",
    )
    add("--json", action="store_true", help="print JSON")


def positive(text: str) -> int:
    """An integer of at least 1."""
    return _integer(text, 1)


def _natural(text: str) -> int:
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    value = int(text) if text.strip().isdecimal() else -1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}; found {text!r}")
    return value


def _positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0; found {text!r}")
    return value


def _block_counts(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _bits(text: str) -> int | None:
    values = {"2": 2, "4": 4, "8": 8, "none": None}
    if text not in values:
        raise argparse.ArgumentTypeError(f"expected 2, 4, 8 or none; found {text!r}")
    return values[text]
