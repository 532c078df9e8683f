"""The calibration for a GPU: its own, or another's scaled by the two datasheets."""

from dataclasses import replace

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import is_same_device, row_of_device
from xlapipe.devices.targets.device import Device, device_of_target
from xlapipe.time.predict.calibration import Calibration, CalibrationError, shipped_calibration
from xlapipe.time.predict.gpu import rates_beside

# GPUs without their own calibration are scaled from this one.
_REFERENCE = "h200"


def calibration_for(device: Device, given: Calibration | None = None) -> Calibration | None:
    """The calibration for a GPU; refuses one of another GPU that the catalogue lacks."""
    if given is not None:
        return given if is_same_device(given.device, device.name) else _scaled(given, device)
    shipped = shipped_calibration(device.row) if device.row is not None else None
    if shipped is not None:
        return shipped
    reference = shipped_calibration(_REFERENCE)
    if not device.peak_flops or not platform_named(device.platform).predicts_times:
        return None
    return _scaled(reference, device) if reference is not None else None


def _scaled(calibration: Calibration, after: Device) -> Calibration:
    row = row_of_device(calibration.device)
    before = device_of_target(row.name) if row is not None else None
    if before is not None and before.platform != after.platform:
        raise CalibrationError(
            f"the calibration is of {before.name!r}, and {after.name!r} is of another vendor, "
            "whose libraries and kernels are others; fix: leave it out, since the floor needs none"
        )
    if before is None:
        raise CalibrationError(
            f"the calibration is of {calibration.device!r}, which the catalogue does not have: "
            f"expected one of {after.name!r}, or of a GPU of `xlapipe targets`, from whose "
            "datasheet it can be scaled; fix: calibrate on that GPU with `xlapipe device calibrate "
            "--target attached --out FILE`, or leave out --calibration"
        )
    own, (vector, clocks) = calibration.constants, rates_beside(after, before)
    peak = (after.peak_of("bf16") or 0.0) / (before.peak_of("bf16") or 1.0) or 1.0
    lines = own.fitted.line_operations * vector / clocks
    constants = replace(
        own,
        bandwidth=own.bandwidth * after.bandwidth / before.bandwidth,
        l2_bandwidth=own.l2_bandwidth * clocks,
        l2_bytes=own.l2_bytes * after.l2_bytes / before.l2_bytes,
        operation_rate=own.operation_rate * vector,
        thread_rate=own.thread_rate * clocks,
        peak_flops={name: rate * peak for name, rate in own.peak_flops.items()},
        fitted=replace(own.fitted, line_operations=lines),
    )
    provenance = {**calibration.provenance, "device": after.name}
    scaled_from = calibration.device
    return replace(calibration, provenance=provenance, constants=constants, scaled_from=scaled_from)
