"""What a user states about the times to predict."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xlapipe.devices.targets.network import Network
    from xlapipe.time.predict.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What times are predicted with, beside the plan.

    Attributes:
      target: a GPU of the catalogue; None for the one that the plan was compiled for.
      calibration: of the user; None for that of the GPU in `xlapipe.time.predict`.
      unknown_trips: trips of each loop whose number the plan does not state; None for 1.
      network: between the devices; None for the usual one of the GPU.
      host: host time as a multiple of that of the host that the calibration was timed on.
    """

    target: str | None = None
    calibration: "Calibration | None" = None
    unknown_trips: int | None = None
    network: "Network | None" = None
    host: float = 1.0


DEFAULT_SETTINGS = PredictionSettings()
