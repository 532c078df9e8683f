"""Calibrates the attached GPU: times small programs, and makes a calibration of their kernels."""

import json
from importlib.metadata import version
from pathlib import Path

import jax
from jax._src.lib import xla_client

from xlapipe.dumps.run_record import run_record
from xlapipe.environment.machine import Machine
from xlapipe.errors import TargetError
from xlapipe.plans.kernel_event import CallInterval, KernelEvent
from xlapipe.predict.calibration import Calibration
from xlapipe.profiles.measured import join_profile
from xlapipe.readers import read_path
from xlapipe.running.calibration.collectives import collective_programs
from xlapipe.running.calibration.fit import ProgramProfile, calibration_of
from xlapipe.running.calibration.further_programs import further_programs
from xlapipe.running.calibration.programs import calibration_programs
from xlapipe.running.calibration.time_programs import Advance, Report, time_programs, write_calls
from xlapipe.running.calibration.timed_program import TimedProgram
from xlapipe.running.calibration.varied_programs import varied_programs
from xlapipe.targets.catalogue import catalogue
from xlapipe.targets.speeds import Speeds, speeds_of_config

_COMPILE_SECONDS = 420.0
_TOTAL_SECONDS = 560.0
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin")


def programs_for_attached() -> dict[str, TimedProgram]:
    """The programs for the attached GPUs; those of collectives if there are several."""
    return {
        **calibration_programs(),
        **varied_programs(),
        **further_programs(),
        **collective_programs(jax.devices()),
    }


def calibrate(folder: Path, command: list[str], report: Report, advance: Advance) -> Calibration:
    """Times every program on the attached GPU; takes at most ten minutes.

    Args:
      folder: gets XLA's files and the profile of each program.
      report: is told of programs that are left out.
      advance: is called twice for each program.

    Raises:
      TargetError: no GPU is attached, or its speeds are unknown.
    """
    programs = programs_for_attached()
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
    provenance = run_record(
        device=jax.devices()[0].device_kind,
        driver=gpu.driver_version if gpu is not None else None,
        versions={name: version(name) for name in _PACKAGES},
        command=command,
    )
    return calibration_of(read_profiles(folder), _attached_speeds(), provenance)


def read_profiles(folder: Path) -> list[ProgramProfile]:
    """The profiles that `calibrate` left in a folder."""
    profiles = []
    for path in sorted(folder.rglob("calls.json")):
        plan, data = read_path(path.parent), json.loads(path.read_bytes())
        calls = [CallInterval(*call) for call in data["calls"]]
        events = [KernelEvent(*event) for event in data["events"]]
        measured = join_profile(plan, events, len(calls), calls)
        name = str(path.parent.relative_to(folder))
        profiles.append(ProgramProfile(name, plan, measured, data["wall_seconds"]))
    return profiles


def _attached_speeds() -> Speeds:
    devices = jax.devices("gpu")
    config = str(xla_client.get_topology_for_devices(devices[:1]).target_config)
    kind = devices[0].device_kind
    rows = [row.name for row in catalogue() if row.description.startswith(kind)]
    speeds = speeds_of_config(config, rows[0] if rows else "")
    if speeds is None:
        raise TargetError(f"the attached {kind}: its configuration has no bandwidth")
    return speeds
