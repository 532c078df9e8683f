"""What both sides of the FSDP comparison compute: the training step of `fsdp-mlp`."""

import os
from dataclasses import dataclass

HIDDEN, LAYERS = 8192, 4
STEPS_PER_SAMPLE = 10
PROFILED_STEPS = 5


@dataclass(frozen=True)
class Case:
    """Rows of one device, and devices."""

    devices: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.devices} GPUs, {self.batch} rows each"


def cases(attached: int) -> list[Case]:
    """On 2 and 4 GPUs, as far as they are there; gemms that hide collectives, and that hardly do.

    `FSDP_CASES=4x4096,2x1024` names others.
    """
    asked = os.environ.get("FSDP_CASES", "2x4096,2x1024,4x4096,4x1024")
    found = [Case(*map(int, text.split("x"))) for text in asked.split(",")]
    return [case for case in found if case.devices <= attached]
