"""What the predicted time of one kernel is made of, as lines of text."""

from collections.abc import Iterator

from xlapipe.errors import XlapipeError
from xlapipe.report.units import microseconds
from xlapipe.time.collectives.exchange import DATASHEET, TABLE
from xlapipe.time.predict import Prediction


def why_lines(prediction: Prediction | None, name: str) -> Iterator[str]:
    """The parts of one launch, what timed kernels changed about them, and the basis."""
    if prediction is None:
        raise XlapipeError(
            "--why: the dump has no predicted time, because it names no GPU or TPU whose speeds "
            "are known; fix: add --target NAME"
        )
    kernel = next((item for item in prediction.kernels if item.name == name), None)
    if kernel is None:
        longest = sorted(prediction.kernels, key=lambda item: -item.seconds)[:3]
        raise XlapipeError(
            f"--why {name}: the step has no such kernel; fix: name one of `show --time`, such as "
            f"{', '.join(item.name for item in longest)}"
        )
    launch, work = kernel.launch, kernel.work
    yield (
        f"{name}: {microseconds(kernel.seconds)} in {kernel.launches:,} launches, "
        f"{microseconds(launch.seconds)} each ({launch.basis})"
    )
    yield f"  kind: {work.kind}" + (f", {work.what}" if work.what else "")
    for part in launch.parts:
        yield f"  {microseconds(part.seconds)}  {part.reason}"
    if launch.nearest:
        yield (
            f"  × {launch.ratio:.2f}  as the most similar kernels that were timed: "
            f"{', '.join(launch.nearest)}"
        )
        if launch.in_a_step != 1:
            yield f"  × {launch.in_a_step:.2f}  as kernels that XLA emits take longer in a step"
        if launch.sustained != 1:
            yield f"  × {launch.sustained:.2f}  at the clock that the GPU's limit of power leaves"
    elif launch.basis not in (TABLE, DATASHEET):
        yield f"  × {launch.ratio:.2f}  assumed: the calibration has no kernel of this kind"
    if kernel.at_floor:
        yield "  raised to the floor"
