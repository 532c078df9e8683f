"""Calibrates the attached GPU: times small programs, and makes a calibration of their kernels."""

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import jax
from jax._src.lib import xla_client

from xlapipe.dumps.run_record import run_record
from xlapipe.environment.machine import Machine
from xlapipe.errors import TargetError
from xlapipe.plans.kernel_event import CallInterval, KernelEvent
from xlapipe.predict.calibration import (
    Calibration,
    CalibrationError,
    read_calibration,
    shipped_calibration,
)
from xlapipe.profiles.measured import join_profile
from xlapipe.readers import read_path
from xlapipe.running.calibration.channel_programs import channel_programs
from xlapipe.running.calibration.code_files import with_kernel_codes
from xlapipe.running.calibration.collectives import collective_programs
from xlapipe.running.calibration.edge_programs import edge_programs
from xlapipe.running.calibration.fit import ProgramProfile, calibration_of, extended
from xlapipe.running.calibration.further_pallas import further_pallas
from xlapipe.running.calibration.further_programs import further_programs
from xlapipe.running.calibration.library_programs import library_programs
from xlapipe.running.calibration.model_programs import model_programs
from xlapipe.running.calibration.pallas_programs import pallas_programs
from xlapipe.running.calibration.programs import calibration_programs
from xlapipe.running.calibration.random_calls import random_calls
from xlapipe.running.calibration.random_fusions import random_fusions
from xlapipe.running.calibration.random_programs import random_programs
from xlapipe.running.calibration.random_steps import random_steps
from xlapipe.running.calibration.seldom_programs import seldom_programs
from xlapipe.running.calibration.table_programs import table_programs
from xlapipe.running.calibration.time_programs import Advance, Report, time_programs, write_calls
from xlapipe.running.calibration.timed_program import TimedProgram
from xlapipe.running.calibration.varied_programs import varied_programs
from xlapipe.targets.catalogue import row_of_device
from xlapipe.targets.device import Device, device_of_config

_COMPILE_SECONDS = 420.0
_TOTAL_SECONDS = 560.0
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin")


def programs_for_one_gpu() -> dict[str, TimedProgram]:
    """Every program without collectives, by name."""
    # What there is no time for is at the end.
    parts = (
        *(calibration_programs, model_programs, varied_programs, random_programs),
        *(edge_programs, table_programs, pallas_programs, further_pallas, channel_programs),
        *(library_programs, seldom_programs, random_calls, random_fusions, random_steps),
        further_programs,
    )
    return {name: program for part in parts for name, program in part().items()}


def programs_for_attached() -> dict[str, TimedProgram]:
    """The programs for the attached GPUs; those of collectives if there are several."""
    return {**programs_for_one_gpu(), **collective_programs(jax.devices())}


def chosen_programs(pattern: str) -> dict[str, TimedProgram]:
    """The programs for the attached GPUs whose names match.

    Raises:
      CalibrationError: the pattern is not a regular expression, or no name matches.
    """
    try:
        matches = re.compile(pattern).search
    except re.error as error:
        raise CalibrationError(f"--only {pattern}: not a regular expression: {error}") from None
    programs = programs_for_attached()
    chosen = {name: program for name, program in programs.items() if matches(name)}
    if not chosen:
        raise CalibrationError(
            f"--only {pattern}: none of the {len(programs):,} programs has such a name, "
            f"such as {next(iter(programs))}"
        )
    return chosen


def base_for_attached(path: Path | None) -> Calibration:
    """The calibration of the attached GPU that gets further programs.

    Args:
      path: None for the one in this package.

    Raises:
      CalibrationError: there is none, or it is of another GPU.
    """
    device = jax.devices()[0].device_kind
    if path is not None:
        base: Calibration | None = read_calibration(path)
    else:
        row = row_of_device(device)
        base = shipped_calibration(row.name) if row is not None else None
    if base is None or base.device != device:
        of = "none is in this package" if base is None else f"the calibration is of {base.device}"
        raise CalibrationError(
            f"--only: the attached device is {device}, and {of}; fix: calibrate without --only, or "
            "give one of this GPU with --calibration FILE"
        )
    return base


def calibrate(
    programs: Mapping[str, TimedProgram],
    folder: Path,
    command: list[str],
    report: Report,
    advance: Advance,
    base: Calibration | None = None,
) -> Calibration:
    """Times programs on the attached GPU; takes at most ten minutes.

    Args:
      programs: all of `programs_for_attached`, unless there is a base.
      folder: gets XLA's files and the profile of each program.
      report: is told of programs that are left out.
      advance: is called twice for each program.
      base: a calibration that gets the programs' kernels.

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
    provenance = run_record(
        device=jax.devices()[0].device_kind,
        driver=gpu.driver_version if gpu is not None else None,
        versions={name: version(name) for name in _PACKAGES},
        command=command,
    )
    profiles = [profile for profile in read_profiles(folder) if profile.name in programs]
    if base is not None:
        return extended(base, profiles, _attached_device(), provenance)
    return calibration_of(profiles, _attached_device(), provenance)


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
    config = str(xla_client.get_topology_for_devices(devices[:1]).target_config)
    device = device_of_config(config)
    if device is None:
        kind = devices[0].device_kind
        raise TargetError(f"the attached {kind}: its configuration has no bandwidth")
    return device
