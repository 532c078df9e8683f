"""Cost and predicted time of a plan on a GPU or TPU, computed once for all callers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.devices.targets.device import Device, Tpu, device_of_config, device_of_target
from xlapipe.plans import HloModule, Plan, Program
from xlapipe.plans.short_repr import short_repr
from xlapipe.time.prediction_settings import DEFAULT_SETTINGS, PredictionSettings

if TYPE_CHECKING:
    from xlapipe.time.cost.step_cost import StepCost
    from xlapipe.time.predict.prediction import Prediction
    from xlapipe.time.recomputed import Recomputation


@dataclass(frozen=True)
class Study:
    """A plan on a device.

    Attributes:
      device: None if unknown, which leaves out floors and the prediction.
      lowered: reads the module before optimisation, for the MFU; None without one.
      predicted_lock: as in `xlapipe.plans.program.CompileFacts`; for the interval of the time.
    """

    __repr__ = short_repr

    plan: Plan
    device: Device | None
    settings: PredictionSettings = DEFAULT_SETTINGS
    lowered: Callable[[], HloModule | None] | None = None
    predicted_lock: Mapping[str, int] | None = None

    @cached_property
    def cost(self) -> "StepCost | None":
        """The cost; None if the dump has no complete HLO module."""
        from xlapipe.time.cost.step_cost import step_cost

        return step_cost(self.plan, self.device, self.settings.network)

    @cached_property
    def prediction(self) -> "Prediction | None":
        """The prediction; None without a complete HLO module, and for a GPU without figures.

        Raises:
          CalibrationError: the user's calibration is not valid for the device.
        """
        if self.device is None or self.cost is None:
            return None
        if isinstance(self.device, Tpu):
            from xlapipe.time.predict.scheduled import estimate

            return estimate(self.plan, self.cost, self.device, self.settings.unknown_trips)
        from xlapipe.time.predict.predict import predict
        from xlapipe.time.predict.scaled_calibration import calibration_for
        from xlapipe.time.predicted_locks.basis import is_guessed

        calibration = calibration_for(self.device, self.settings.calibration)
        if calibration is None:
            return None
        guessed = is_guessed(self.predicted_lock)
        return predict(self.plan, self.cost, calibration, self.settings, guessed=guessed)

    @cached_property
    def prediction_with_mfu(self) -> "Prediction | None":
        """The prediction with its MFU, for which the module before optimisation is read."""
        from xlapipe.time.cost.model_flops import utilisation

        prediction = self.prediction
        if prediction is None or self.device is None or self.cost is None:
            return prediction
        trips = self.settings.unknown_trips or self.plan.stated_trips
        used = utilisation(self.plan, self.cost, self.device, self.lowered, trips)
        seconds = prediction.step_seconds
        return replace(prediction, mfu=used.share(seconds), mfu_text=used.text(seconds))

    @cached_property
    def recomputation(self) -> "Recomputation | None":
        """What XLA computes again to fit; None if nothing."""
        from xlapipe.time.recomputed import recomputation, rematerialised_names

        names = rematerialised_names(self.plan)
        if not names:
            return None
        kernels = self.prediction.kernels if self.prediction is not None else ()
        return recomputation(self.plan, names, {item.name: item.seconds for item in kernels})


def study_of(
    program: Program,
    settings: PredictionSettings = DEFAULT_SETTINGS,
    lowered: Callable[[], HloModule | None] | None = None,
) -> Study:
    """The program on the device and the network that are stated, or that it was compiled for."""
    device = device_of(program.facts.target, program.target_config, settings.target)
    if settings.network is None and program.plan.collectives:
        from xlapipe.devices.targets.network import network_stated

        settings = replace(settings, network=network_stated(Path.cwd()))
    return Study(program.plan, device, settings, lowered, program.facts.predicted_lock)


def device_of(target: str | None, config_text: str | None, asked: str | None) -> Device | None:
    """The device that a plan's times are for; None if it is unknown."""
    if asked not in (None, target):
        return device_of_target(asked or "")
    if config_text:
        return device_of_config(config_text)
    return device_of_target(target) if target is not None else None
