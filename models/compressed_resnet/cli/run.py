"""Runs a training run: from the command's options to a trained network."""

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from models.compressed_resnet.cli.options import Settings, settings_of
from models.compressed_resnet.cli.output import StepBar, note
from models.compressed_resnet.data.batches import check_batch, training_batches
from models.compressed_resnet.data.dataset import Dataset, load_dataset
from xlapipe import XlapipeError

if TYPE_CHECKING:
    from models.compressed_resnet.checkpoints import Checkpoints
    from models.compressed_resnet.trainer import Trainer

# Steps between readings of the loss, which wait for the device.
READ_EVERY = 10


def train_command(options: argparse.Namespace) -> dict[str, Any]:
    """Trains, and returns the JSON output.

    Raises:
      XlapipeError: bad input, or a loss that is not finite.
    """
    training, testing = load_dataset(options.data, options.image_size)
    settings = settings_of(options, training.classes)
    check_batch(settings.batch, len(training.labels))
    # Imported here, because they import jax: bad options are reported without it.
    from models.compressed_resnet.trainer import Trainer

    trainer = Trainer(settings)
    checkpoints = _checkpoints(settings)
    first_step = _start(trainer, checkpoints, settings)
    if first_step:
        note(f"resuming after step {first_step:,}")
    losses, rate = _steps(trainer, training, checkpoints, settings, first_step, options.json)
    accuracy = trainer.accuracy(testing)
    speed = "" if rate is None else f", {rate:,.0f} images/s"
    note(f"{settings.steps:,} steps; {accuracy:.2%} of {len(testing.labels):,} test images{speed}")
    return {
        "steps": settings.steps,
        "first_step": first_step,
        "losses": losses,
        "test_accuracy": accuracy,
        "images_per_second": rate,
        "peak_bytes": trainer.peak_bytes,
        "device": trainer.device.device_kind,
        "classes": settings.config.classes,
        "bits": settings.config.bits,
    }


def _checkpoints(settings: Settings) -> "Checkpoints | None":
    if settings.checkpoints is None:
        return None
    from models.compressed_resnet.checkpoints import Checkpoints

    return Checkpoints(settings.checkpoints, settings.identity)


def _start(trainer: "Trainer", checkpoints: "Checkpoints | None", settings: Settings) -> int:
    """Sets the trainer's state, and returns the number of steps before it."""
    step = None if checkpoints is None else checkpoints.latest_step
    if checkpoints is None or step is None:
        trainer.initialise()
        return 0
    if step > settings.steps:
        raise XlapipeError(
            f"--steps {settings.steps}: expected at least {step}, the steps of the last checkpoint "
            f"in {settings.checkpoints}"
        )
    trainer.state = checkpoints.restore(step, trainer.abstract_state)
    return step


def _steps(
    trainer: "Trainer",
    training: Dataset,
    checkpoints: "Checkpoints | None",
    settings: Settings,
    first_step: int,
    silent: bool,
) -> tuple[list[float], float | None]:
    """Trains until the last step; returns the losses, and images per second after the first step.

    The time includes reading images, and leaves out compilation and checkpoints.
    """
    losses: list[Any] = []
    clock = _Clock()
    batches = training_batches(
        training, settings.batch, settings.seed, range(first_step, settings.steps)
    )
    with StepBar(settings.steps, first_step, silent=silent) as bar:
        for done, (images, labels) in enumerate(batches, first_step + 1):
            losses.append(trainer.step(images, labels))
            last = done == settings.steps
            saves = checkpoints is not None and (last or done % settings.save_every == 0)
            if last or saves or len(losses) == 1 or done % READ_EVERY == 0:
                losses[-1] = _finite(losses[-1], done)
                bar.show(done, losses[-1], clock.rate(len(losses) * settings.batch))
            if saves and checkpoints is not None:
                with clock.stopped():
                    checkpoints.save(done, trainer.state)
    if checkpoints is not None:
        checkpoints.close()
    return [float(loss) for loss in losses], clock.last_rate


class _Clock:
    """Images per second since the first reading, without the time in which it was stopped."""

    def __init__(self) -> None:
        self._first_images = 0
        self._started: float | None = None
        self.last_rate: float | None = None

    def rate(self, images: int) -> float | None:
        """Images per second until now; None at the first reading, before which a step compiles."""
        now = time.perf_counter()
        if self._started is None:
            self._started, self._first_images = now, images
        elif images > self._first_images:
            self.last_rate = (images - self._first_images) / (now - self._started)
        return self.last_rate

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leaves out the time of the block."""
        before = time.perf_counter()
        yield
        if self._started is not None:
            self._started += time.perf_counter() - before


def _finite(loss: Any, step: int) -> float:
    value = float(loss)
    if not math.isfinite(value):
        raise XlapipeError(
            f"the loss is {value} at step {step:,}; fix: a smaller --learning-rate, or resume from "
            "an earlier checkpoint"
        )
    return value
