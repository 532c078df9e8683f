"""Which calibration holds for a GPU: its own, or another's scaled by the two datasheets."""

from xlapipe.predict.calibration import Calibration, shipped_calibration
from xlapipe.targets.catalogue import catalogue
from xlapipe.targets.speeds import Speeds, speeds_of_target

# Others are scaled from it.
_REFERENCE = "h200"


def calibration_for(
    target: str, speeds: Speeds, given: Calibration | None = None
) -> Calibration | None:
    """The calibration for a GPU.

    Args:
      target: a name of the catalogue, or of an attached device, which begins with one.
      speeds: of the GPU.
      given: a calibration of the user, instead of the one in this package.

    Returns:
      None for a GPU without peaks, which nothing can be scaled to.
    """
    row = next((row for row in catalogue() if _is(target, row.name)), None)
    if given is not None:
        if row is None or row.description.startswith(given.device):
            return given
        own = next((r for r in catalogue() if r.description.startswith(given.device)), None)
        before = speeds_of_target(own.name) if own is not None else None
        return _scaled(given, before, speeds, row.description) if before is not None else given
    shipped = shipped_calibration(row.name) if row is not None else None
    if shipped is not None:
        return shipped
    reference, before = shipped_calibration(_REFERENCE), speeds_of_target(_REFERENCE)
    if reference is None or before is None or not speeds.peak_flops:
        return None
    return _scaled(reference, before, speeds, row.description if row is not None else target)


def _is(target: str, name: str) -> bool:
    return target == name or target.startswith(f"{name}_")


def _scaled(calibration: Calibration, before: Speeds, after: Speeds, device: str) -> Calibration:
    peaks = (after.peak_of("bf16") or 0.0) / (before.peak_of("bf16") or 1.0)
    vector = after.vector_flops / before.vector_flops if after.vector_flops else 1.0
    return calibration.scaled(
        device,
        bandwidth=after.bandwidth / before.bandwidth,
        peak_flops=peaks or 1.0,
        vector=vector,
        l2_bytes=after.l2_bytes / before.l2_bytes,
    )
