"""The compiling child: reads a Job, lowers, compiles, and writes a CompileRecord.

XLA writes its dump files meanwhile. An exception becomes a ChildError in the result; a crash
leaves no result, and the parent reports that. Only `_start_child.py` imports this module.
"""

import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.extend import source_info_util
from jax.extend.mlir import ir
from jax.interpreters import mlir

from xlapipe.compile.answered_tuning import PredictedLockError
from xlapipe.compile.compile_cache import CompileCache, compile_key
from xlapipe.compile.compile_program import compile_program
from xlapipe.compile.job import Job
from xlapipe.compile.lowering.asked_early import noting_questions
from xlapipe.compile.lowering.chosen_policy import refuse_other_traces
from xlapipe.compile.lowering.leaves import leaves_as_compiled
from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.lowering.meshes import axes_of
from xlapipe.compile.lowering.module_kernels import listed_kernels
from xlapipe.compile.lowering.names import user_frame
from xlapipe.compile.lowering.target_devices import let_cpu_meshes_stand_for
from xlapipe.compile.messages import (
    KERNELS_IN_LOG,
    LOCK_STAGE,
    PYTHON_PARTITIONED,
    TRACES_STAGE,
    ChildError,
    CompileRecord,
    LoweredProgram,
    source_root_pattern,
    to_json,
)
from xlapipe.compile.user_environment import refuse_changed_variables
from xlapipe.compile.xla_log import rematerialised_bytes
from xlapipe.compile.xla_patches import XlaPatch, cub_table
from xlapipe.compile.xla_patches.stand_ins import are_loaded
from xlapipe.devices.platforms.cub_sort import TILE_ITEMS, all_widths_known
from xlapipe.devices.targets.chip_grid import ChipGrid
from xlapipe.devices.targets.topology import (
    DeviceTopology,
    topology_of_devices,
)
from xlapipe.errors import DifferentTracesError, ParameterError, WorkloadError, XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.jax_private import amd_gpu_count, get_topology_for_devices
from xlapipe.plans.program import StepFacts

# What calls of jax's own functions and of MLIR's may raise in another version.
_OF_ANOTHER_JAX = (AttributeError, ImportError, LookupError, TypeError, ValueError)


def main(job_path: Path) -> int:
    """Returns 0 if a result was written, even if it is an error."""
    faulthandler.register(signal.SIGUSR1)  # the parent asks where each thread is
    job = Job.from_bytes(job_path.read_bytes())
    stages = _Stages(job.started_seconds)
    try:
        result: object = _compile(job, stages)
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, or exit
        traceback.print_exc()
        result = {"error": _child_error(error, stages.current)}
    try:
        write_files({job.result_path: to_json(result)})
    except Exception:  # noqa: BLE001 - the disk is full, or the user's module has replaced `json`
        traceback.print_exc()
        return 1
    return 0


def _child_error(error: BaseException, stage: str) -> ChildError:
    if isinstance(error, ParameterError):
        stage = "parameters"
    if isinstance(error, DifferentTracesError):
        stage = TRACES_STAGE
    if isinstance(error, PredictedLockError):
        stage = LOCK_STAGE
    return ChildError(
        stage=stage,
        type="" if isinstance(error, XlapipeError) else type(error).__name__,
        message=str(error).rstrip(),
        frame=user_frame(error),
    )


class _Stages:
    """The stage that is running, for messages, and the time of each since the parent began."""

    def __init__(self, started_seconds: float) -> None:
        self.current = "start"
        self._entered = [("start", started_seconds)]

    def enter(self, stage: str) -> None:
        self.current = stage
        self._entered.append((stage, time.monotonic()))

    def seconds(self) -> dict[str, float]:
        """Seconds of loading Python, jax and the workload, of lowering, and of compiling."""
        ends = [*(entered for _, entered in self._entered[1:]), time.monotonic()]
        seconds = {"load": 0.0, "lower": 0.0, "compile": 0.0}
        for (stage, begin), end in zip(self._entered, ends, strict=True):
            if stage not in ("cache", "record"):
                seconds[stage if stage in seconds else "load"] += end - begin
        return seconds


def _compile(job: Job, stages: _Stages) -> CompileRecord:
    # A compilation taken from the cache would dump nothing.
    jax.config.update("jax_enable_compilation_cache", False)
    # As in xlapipe.compile.lowering.lower, for the frames of this package.
    source_info_util.register_exclusion(os.path.dirname(__file__))

    platform = job.platform
    if job.target is not None and platform.refuses_without_device:
        setattr(*amd_gpu_count, lambda stop_at=None: 1)

    if job.source_root:
        pattern = f"^{source_root_pattern(job.source_root)}"
        jax.config.update("jax_hlo_source_file_canonicalization_regex", pattern)

    program, place = _lowered(job, stages)
    if job.target is not None and job.lock is None and b"convolution" in program.stablehlo:
        program = replace(program, options={**platform.convolution_options, **program.options})
    stages.enter("cache")
    cache = CompileCache(job.cache_folder) if job.cache_folder is not None else None
    key = job.cache_key or ""  # the parent has looked for it
    if cache is not None and not key:
        key = compile_key(job, program, os.environ)
        earlier = cache.restore(key, job, program.arguments)
        if earlier is not None:
            return replace(earlier, expectations=program.expectations, seconds=stages.seconds())
    stages.enter("compile")
    cub_installed, sorts_undecided = _decide_on_sorts(job, program)
    with suppress(*_OF_ANOTHER_JAX):
        # XLA's message, or LLVM's as it ends the process, names no kernel.
        if kernels := listed_kernels(program):
            sys.stderr.write(f"{KERNELS_IN_LOG}{kernels}\n")
            sys.stderr.flush()
    compiled = compile_program(job, program, place.devices)
    stages.enter("record")
    executable = compiled.executable
    made = {
        XlaPatch.CUB_TABLE: cub_installed,
        XlaPatch.INSTRUCTION_ORDER: compiled.renumbered,
        XlaPatch.STAND_INS: are_loaded(),
    }
    if job.serialize and executable is not None:
        # PJRT's own bytes. jax's serialize_executable wraps them in a pickle, which can run code.
        job.executable_path.write_bytes(executable.serialize())
    packages = ("jax", "jaxlib", *platform.recorded_packages)
    facts = {item.name: getattr(program, item.name) for item in fields(StepFacts)}
    if executable is not None:
        facts |= leaves_as_compiled(program, executable)
    record = CompileRecord(
        **facts,
        options={name: str(value) for name, value in program.options.items()},
        topology=str(place.topology) if place.topology is not None else None,
        target_config=place.target_config,
        memory_analysis=_memory_analysis(job, executable),
        refused=compiled.refused,
        fusion_without_result=compiled.fusion_without_result,
        predicted_lock=compiled.predicted_lock,
        other_choice=compiled.other_choice,
        seconds=stages.seconds(),
        versions={name: version(name) for name in packages},
        xla_patches=tuple(patch for patch, is_made in made.items() if is_made),
        sorts_undecided=sorts_undecided,
        rematerialised_bytes=rematerialised_bytes(job.log_path),
    )
    if cache is not None:
        cache.keep(key, job, record)
    return record


def _decide_on_sorts(job: Job, program: LoweredProgram) -> tuple[bool, bool]:
    """Lets XLA use CUB for sorts as on the target, if CUB's scratch sizes are known for it.

    Returns whether XLA's table was changed, and whether XLA uses its own sorts where it may use CUB
    on the target.
    """
    platform = job.platform
    if job.target is None or not platform.may_sort_by_library:
        return False, False
    if not cub_table.may_sort(program.stablehlo):
        return False, False
    if platform.plugin is None or XlaPatch.CUB_TABLE in job.without_xla_patches:
        return False, True
    figures = platform.device_figures(job.target.config_text)
    capability = figures.compute_capability or ""
    installed = capability in TILE_ITEMS and cub_table.install(
        platform.plugin,
        _as_text(program),
        device=figures.device_kind,
        capability=capability,
        cub_version=figures.cub_version or "",
        devices=program.device_count,
    )
    return installed, not (installed and all_widths_known(capability))


def _as_text(program: LoweredProgram) -> str:
    """The module as text, without the values of large constants."""
    with mlir.make_ir_context():
        module = ir.Module.parse(program.stablehlo)
        return str(module.operation.get_asm(large_elements_limit=16))


def _memory_analysis(job: Job, executable: Any) -> dict[str, int]:
    """XLA's own totals in bytes for the device, and for the host if the program uses its memory.

    Empty without an executable. The program's code may take device memory as well.
    """
    if executable is None:
        return {}
    memory = executable.get_compiled_memory_stats()
    names = ("argument", "output", "alias", "temp")
    device = {f"{name}_bytes": getattr(memory, f"{name}_size_in_bytes") for name in names}
    host = {f"host_{name}_bytes": getattr(memory, f"host_{name}_size_in_bytes") for name in names}
    if job.platform.code_takes_memory:
        device["code_bytes"] = memory.generated_code_size_in_bytes
    return {**device, **host} if any(host.values()) else device


@dataclass(frozen=True)
class _Place:
    """The topology and jax's devices, attached or not, that a program is compiled for."""

    topology: DeviceTopology | None
    devices: list[Any]
    target_config: str


def _lowered(job: Job, stages: _Stages) -> tuple[LoweredProgram, _Place]:
    """The lowered program, and what it is compiled for."""
    if job.program is not None:
        _refuse_python_partitioned(job.program)
        return job.program, _place_of_mesh(job, stages, job.program.workload, job.program.mesh)
    platform = job.platform
    if job.target is not None:
        let_cpu_meshes_stand_for(platform.device_figures(job.target.config_text))
    stages.enter("import")
    requested = job.topology
    devices_wanted = requested.device_count if requested is not None else None
    before = dict(os.environ)
    sys.path[:0] = map(str, job.import_paths)
    imported = set(sys.modules)
    with noting_questions() as questions:
        workload = load_workload(job.reference, devices=devices_wanted)
    if job.instead_of is not None:
        _refuse_modules_below(str(job.instead_of), workload.name, imported)
    refuse_changed_variables(
        workload.name,
        before,
        os.environ,
        settings=jax.config.values,
        platform=platform.name,
    )
    axes = axes_of(workload)
    if axes is not None or requested is None or requested.device_count == 1:
        place = _place_of_mesh(job, stages, workload.name, axes)
    else:  # a step may name its mesh inside alone, which is known once it is lowered
        stages.enter("target")
        place = _place(job, workload.name, requested)
    stages.enter("lower")

    def lower_once() -> LoweredProgram:
        return lower(workload, place.target_config, platform=platform, topology=place.topology)

    program = lower_once()
    refuse_other_traces(lower_once)
    if job.target is not None:
        figures = platform.device_figures(job.target.config_text)
        asked = questions.differing(figures, program.device_count)
        program = replace(program, asked_early=asked)
    if program.mesh != axes or (axes is None and place.topology is not None):
        place = _place_of_mesh(job, stages, workload.name, program.mesh)
    return program, place


def _refuse_modules_below(folder: str, name: str, imported: Set[str]) -> None:
    """Refuses modules of a folder that another commit's should have been imported instead of."""
    pattern = re.compile(source_root_pattern(folder))
    for module in set(sys.modules) - imported:
        file = getattr(sys.modules[module], "__file__", None) or ""
        if pattern.match(file) and module.partition(".")[0] != "xlapipe":
            raise WorkloadError(
                f"workload {name}: {module} was imported from {file}, expected that of the commit "
                "that is compared with; fix: register the workload below [tool.xlapipe.workloads] "
                "of the pyproject.toml beside its package"
            )


def _refuse_python_partitioned(program: LoweredProgram) -> None:
    """Refuses a program that the parent has lowered, and that XLA calls back in that process."""
    if PYTHON_PARTITIONED in program.stablehlo:
        raise WorkloadError(
            f"{program.workload}: its mesh partitions a call by Python code, e.g. cuDNN attention, "
            "which XLA can call only in the process that lowered the step, and this step was "
            "lowered in a test's or notebook's own process; fix: call it inside jax.shard_map over "
            "all axes of the mesh, or put the step into a module and compile it by name: xlapipe "
            "check module:workload"
        )


def _topology(job: Job, name: str, mesh: Mapping[str, int] | None) -> DeviceTopology | None:
    """Hosts and GPUs, or chips, that the mesh covers; None for a workload without a mesh."""
    count = prod(mesh.values()) if mesh is not None else 1
    requested = job.topology
    one_of_a_chip = mesh is None and isinstance(requested, ChipGrid) and requested.is_single_chip
    if requested is not None and requested.device_count != count and not one_of_a_chip:
        axes = ", ".join(f"{axis}={size}" for axis, size in (mesh or {}).items())
        mesh_text = f"its mesh ({axes}) has" if mesh is not None else "it has no mesh, so it uses"
        fix = (
            "leave --topology out, or give the workload a mesh"
            if mesh is None
            else "use one of the same size, or give the workload's function a `devices` "
            "parameter, which receives the topology's number of devices"
        )
        raise WorkloadError(
            f"workload {name}: {mesh_text} {count} device{'s' if count > 1 else ''}, topology "
            f"{requested} has {requested.device_count}: mesh and topology must have the same "
            f"device count; fix: {fix}"
        )
    if mesh is None:
        return None
    return requested or topology_of_devices(
        count, platform=job.platform.name, config_text=job.config_text
    )


def _place_of_mesh(job: Job, stages: _Stages, name: str, mesh: Mapping[str, int] | None) -> _Place:
    stages.enter("topology")
    topology = _topology(job, name, mesh)
    stages.enter("target")
    return _place(job, name, topology)


def _place(job: Job, name: str, topology: DeviceTopology | None) -> _Place:
    if job.target is None:
        return _attached(name, topology)
    platform, config_text = job.platform, job.target.config_text
    arguments = platform.topology_arguments(
        config_text, str(topology) if topology is not None else None
    )
    description = topologies.get_topology_desc(platform=platform.name, **arguments)
    devices = list(description.devices)
    # A chip may have two devices; a program without a mesh is compiled for one of them.
    return _Place(topology, devices if topology is not None else devices[:1], config_text)


def _attached(name: str, topology: DeviceTopology | None) -> _Place:
    devices = jax.devices("gpu")
    hosts, per_host = (topology.hosts, topology.gpus) if topology is not None else (1, 1)
    if hosts > 1 or per_host > len(devices):
        raise WorkloadError(
            f"workload {name}: its mesh needs {hosts} host(s) with {per_host} GPUs each, found "
            f"one host with {len(devices)}; fix: name a --target to compile without the GPUs"
        )
    return _Place(
        topology, devices[:per_host], str(get_topology_for_devices(devices).target_config)
    )
