"""The provenance of the records that the scripts of this folder write."""

import sys
from collections.abc import Mapping
from typing import Any

from xlapipe.devices.environment.machine import Machine
from xlapipe.dump.run_record import run_record


def provenance(versions: Mapping[str, str]) -> dict[str, Any]:
    """Device, driver, versions by package, the script's command line, and the date."""
    gpu = Machine.local().gpu()
    return run_record(
        device=gpu.name if gpu is not None else "no GPU",
        versions=versions,
        command=["python", *sys.argv],
    )
