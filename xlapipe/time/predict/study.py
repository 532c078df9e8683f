"""Cost and predicted time of a plan on a GPU, computed once for all callers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.devices.targets.device import Device, device_of_config, device_of_target
from xlapipe.devices.targets.network import Network
from xlapipe.plans.plan import Plan
from xlapipe.time.cost.step_cost import StepCost, step_cost
from xlapipe.time.predict.calibration import Calibration
from xlapipe.time.predict.choose import calibration_for
from xlapipe.time.predict.predict import Prediction, predict


@dataclass(frozen=True)
class Study:
    """A plan on a GPU.

    Attributes:
      device: None if unknown, which leaves out floors and the prediction.
      calibration: of the user; by default the one in this package for the device.
      unknown_trips, timed, network: as for `predict`.
      host: host time, relative to the calibration's host.
    """

    plan: Plan
    device: Device | None
    calibration: Calibration | None = None
    unknown_trips: int | None = None
    timed: Mapping[str, float] | None = None
    network: Network | None = None
    host: float = 1.0

    @cached_property
    def cost(self) -> StepCost | None:
        """The cost; None if the dump has no complete HLO module, and for a TPU."""
        return step_cost(self.plan, self.device, self.network)

    @cached_property
    def prediction(self) -> Prediction | None:
        """The prediction; None without a complete HLO module, and for a GPU without figures.

        Raises:
          CalibrationError: the user's calibration is not valid for the device.
        """
        if self.device is None or self.cost is None:
            return None
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


def device_of(target: str | None, config_text: str | None, asked: str | None) -> Device | None:
    """The GPU that a plan's times are for; None if it is unknown or not a GPU.

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
