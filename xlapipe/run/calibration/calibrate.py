"""Times probes on the attached GPU: the record that a calibration is derived from."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import jax

from xlapipe.devices.environment.machine import Machine
from xlapipe.dump.run_record import run_record
from xlapipe.jax_private import get_topology_for_devices
from xlapipe.run.calibration.record import RecordAbout
from xlapipe.run.calibration.time_programs import Advance, Report, time_programs, write_calls
from xlapipe.run.calibration.timed_program import TimedProgram

_COMPILE_SECONDS = 420.0
_TOTAL_SECONDS = 560.0
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin")


def time_probes(
    programs: Mapping[str, TimedProgram],
    folder: Path,
    command: list[str],
    report: Report,
    advance: Advance,
) -> RecordAbout:
    """Time programs on the attached GPU; takes at most ten minutes.

    Args:
      programs: `probes_for_attached`.
      folder: gets XLA's files and the profile of each program.
      report: is called with a line for each program that is left out.
      advance: is called twice for each program.

    Returns:
      Where the times are from, for `record_of`.
    """
    for name, timed in time_programs(
        programs,
        folder,
        compile_seconds=_COMPILE_SECONDS,
        total_seconds=_TOTAL_SECONDS,
        report=report,
        advance=advance,
    ):
        write_calls(folder / name, timed)
    gpu = Machine.local().gpu()
    devices = jax.devices("gpu")
    about = run_record(
        device=devices[0].device_kind,
        driver=gpu.driver_version if gpu is not None else "unknown",
        versions={name: version(name) for name in _PACKAGES},
        command=command,
    )
    config = str(get_topology_for_devices(devices[:1]).target_config)
    return RecordAbout(**about, gpus=jax.device_count(), target_config=config)
