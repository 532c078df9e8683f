"""Calibrates the attached GPU: times probes, and makes a calibration of their kernels."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import jax

from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.targets.device import Device, device_of_config
from xlapipe.dump.readers import read_path
from xlapipe.dump.run_record import run_record
from xlapipe.errors import TargetError
from xlapipe.jax_private import get_topology_for_devices
from xlapipe.plans.kernel_event import CallInterval, KernelEvent
from xlapipe.run.calibration.code_files import with_kernel_codes
from xlapipe.run.calibration.fit import ProgramProfile, calibration_of
from xlapipe.run.calibration.time_programs import Advance, Report, time_programs, write_calls
from xlapipe.run.calibration.timed_program import TimedProgram
from xlapipe.time.predict.calibration import Calibration
from xlapipe.time.profiles.measured import join_profile

_COMPILE_SECONDS = 420.0
_TOTAL_SECONDS = 560.0
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin")


def calibrate(
    programs: Mapping[str, TimedProgram],
    folder: Path,
    command: list[str],
    report: Report,
    advance: Advance,
) -> Calibration:
    """Times programs on the attached GPU; takes at most ten minutes.

    Args:
      programs: `probes_for_attached`.
      folder: gets XLA's files and the profile of each program.
      report: is called with a line for each program that is left out.
      advance: is called twice for each program.

    Raises:
      TargetError: no GPU is attached, or its speeds are unknown.
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
    record = run_record(
        device=jax.devices()[0].device_kind,
        driver=gpu.driver_version if gpu is not None else None,
        versions={name: version(name) for name in _PACKAGES},
        command=command,
    )
    provenance = {**record, "gpus": jax.device_count()}
    return calibration_of(read_profiles(folder), _attached_device(), provenance)


def read_profiles(folder: Path) -> list[ProgramProfile]:
    """The profiles that `calibrate` left in a folder."""
    profiles = []
    for path in sorted(folder.rglob("calls.json")):
        plan = with_kernel_codes(read_path(path.parent), path.parent)
        data = json.loads(path.read_bytes())
        calls = [CallInterval(*call) for call in data["calls"]]
        events = [KernelEvent(*event) for event in data["events"]]
        measured = join_profile(plan, events, len(calls), calls)
        name = str(path.parent.relative_to(folder))
        profiles.append(ProgramProfile(name, plan, measured, data["wall_seconds"]))
    return profiles


def _attached_device() -> Device:
    devices = jax.devices("gpu")
    config = str(get_topology_for_devices(devices[:1]).target_config)
    device = device_of_config(config)
    if device is None:
        kind = devices[0].device_kind
        raise TargetError(f"the attached {kind}: its configuration has no bandwidth")
    return device
