"""The cases of the FSDP comparison: the training step of `fsdp-mlp`."""

import os
from dataclasses import dataclass

HIDDEN, LAYERS = 8192, 4
STEPS_PER_SAMPLE = 10
PROFILED_STEPS = 5


@dataclass(frozen=True)
class Case:
    """The number of devices, and rows per device."""

    devices: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.devices} GPUs, {self.batch} rows each"


def cases(attached: int) -> list[Case]:
    """The cases for at most `attached` GPUs: long gemms, which hide collectives, and short ones.

    `FSDP_CASES=4x4096,2x1024` replaces the default cases.
    """
    text = os.environ.get("FSDP_CASES", "2x4096,2x1024,4x4096,4x1024")
    all_cases = [Case(*map(int, case.split("x"))) for case in text.split(",")]
    return [case for case in all_cases if case.devices <= attached]
