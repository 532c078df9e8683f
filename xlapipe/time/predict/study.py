"""Cost and predicted time of a plan on a GPU or TPU, computed once for all callers.

A GPU has its own calibration, or another's scaled by the two datasheets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from xlapipe.devices.targets.catalogue import is_same_device, row_of_device
from xlapipe.devices.targets.device import Device, Tpu, device_of_config, device_of_target
from xlapipe.devices.targets.network import Network
from xlapipe.plans.hlo import HloModule
from xlapipe.plans.plan import Plan
from xlapipe.time.cost.model_flops import utilisation
from xlapipe.time.cost.step_cost import StepCost, step_cost
from xlapipe.time.predict.calibration import Calibration, CalibrationError, shipped_calibration
from xlapipe.time.predict.predict import Prediction, predict
from xlapipe.time.predict.scheduled import estimate
from xlapipe.time.recomputed import Recomputation, recomputation, rematerialised_names

# GPUs without their own calibration are scaled from this one.
_REFERENCE = "h200"


@dataclass(frozen=True)
class Study:
    """A plan on a device.

    Attributes:
      device: None if unknown, which leaves out floors and the prediction.
      calibration: of the user; by default the one in this package for the device.
      unknown_trips, timed, network: as for `predict`.
      host: host time, relative to the calibration's host.
      lowered: reads the module before optimisation, for the MFU; None without one.
    """

    plan: Plan
    device: Device | None
    calibration: Calibration | None = None
    unknown_trips: int | None = None
    timed: Mapping[str, float] | None = None
    network: Network | None = None
    host: float = 1.0
    lowered: Callable[[], HloModule | None] | None = None

    @cached_property
    def cost(self) -> StepCost | None:
        """The cost; None if the dump has no complete HLO module."""
        return step_cost(self.plan, self.device, self.network)

    @cached_property
    def prediction(self) -> Prediction | None:
        """The prediction; None without a complete HLO module, and for a GPU without figures.

        Raises:
          CalibrationError: the user's calibration is not valid for the device.
        """
        if self.device is None or self.cost is None:
            return None
        if isinstance(self.device, Tpu):
            return estimate(self.plan, self.cost, self.device, self.unknown_trips)
        calibration = calibration_for(self.device, self.calibration)
        if calibration is None:
            return None
        return predict(
            self.plan,
            self.cost,
            calibration.with_host(self.host) if self.host != 1 else calibration,
            unknown_trips=self.unknown_trips,
            timed=self.timed,
            network=self.network,
        )

    @cached_property
    def prediction_with_mfu(self) -> Prediction | None:
        """The prediction with its MFU, for which the module before optimisation is read."""
        prediction = self.prediction
        if prediction is None or self.device is None or self.cost is None:
            return prediction
        trips = self.unknown_trips or self.plan.stated_trips
        used = utilisation(self.plan, self.cost, self.device, self.lowered, trips)
        seconds = prediction.step_seconds
        return replace(prediction, mfu=used.share(seconds), mfu_text=used.text(seconds))

    @cached_property
    def recomputation(self) -> Recomputation | None:
        """What XLA computes again to fit; None if nothing."""
        names = rematerialised_names(self.plan)
        if not names:
            return None
        kernels = self.prediction.kernels if self.prediction is not None else ()
        return recomputation(self.plan, names, {item.name: item.seconds for item in kernels})


def device_of(target: str | None, config_text: str | None, asked: str | None) -> Device | None:
    """The device that a plan's times are for; None if it is unknown.

    Args:
      target: name of the target that the plan was compiled for.
      config_text: its GpuTargetConfigProto, if the dump has it: a device reports figures that
        differ from the catalogue's.
      asked: name of another target of the catalogue.
    """
    if asked not in (None, target):
        return device_of_target(asked or "")
    if config_text:
        return device_of_config(config_text)
    return device_of_target(target) if target is not None else None


def calibration_for(device: Device, given: Calibration | None = None) -> Calibration | None:
    """The calibration for a GPU.

    Args:
      given: a calibration of the user, instead of the one in this package.

    Returns:
      None for a GPU without peaks, which nothing can be scaled to.

    Raises:
      CalibrationError: the given calibration is of another GPU, which the catalogue lacks.
    """
    if given is not None:
        return given if is_same_device(given.device, device.name) else _scaled(given, device)
    shipped = shipped_calibration(device.row) if device.row is not None else None
    if shipped is not None:
        return shipped
    reference = shipped_calibration(_REFERENCE)
    return _scaled(reference, device) if reference is not None and device.peak_flops else None


def _scaled(calibration: Calibration, after: Device) -> Calibration:
    row = row_of_device(calibration.device)
    before = device_of_target(row.name) if row is not None else None
    if before is None:
        raise CalibrationError(
            f"the calibration is of {calibration.device!r}, which the catalogue does not have: "
            f"expected one of {after.name!r}, or of a GPU of `xlapipe targets`, from whose "
            "datasheet it can be scaled; fix: calibrate on that GPU with `xlapipe calibrate "
            "--target attached --out FILE`, or leave out --calibration"
        )
    vector = after.vector_flops / before.vector_flops if after.vector_flops else 1.0
    return calibration.scaled(
        after.name,
        bandwidth=after.bandwidth / before.bandwidth,
        peak_flops=(after.peak_of("bf16") or 0.0) / (before.peak_of("bf16") or 1.0) or 1.0,
        vector=vector,
        l2_bytes=after.l2_bytes / before.l2_bytes,
    )
