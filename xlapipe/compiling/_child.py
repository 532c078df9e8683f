"""The compiling child: `python _child.py REQUEST.json`. Never imported.

It reads a request, lowers what it names, compiles, lets XLA write its dump, and writes
RESULT.json. Bad input comes back as an error in the result; a crash leaves no result, and the
parent says so.
"""

import json
import os
import re
import shutil
import sys
import time
import traceback
from dataclasses import asdict
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xlapipe.lowering.lowered_program import LoweredProgram
    from xlapipe.plan.program import OutputLeaf
    from xlapipe.targets.topology import Topology


def main(request_path: str) -> int:
    """Returns 0 if a result was written, be it an error."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    result_path = Path(request["result"])
    stages = _Stages(request["started"])
    try:
        result = _compile(request, stages)
    except Exception as error:  # noqa: BLE001 - the user's code and XLA may raise anything
        traceback.print_exc()
        from xlapipe.errors import ParameterError, XlapipeError
        from xlapipe.lowering.lower import user_frame

        result = {
            "error": {
                "stage": "parameters" if isinstance(error, ParameterError) else stages.now,
                "type": "" if isinstance(error, XlapipeError) else type(error).__name__,
                "message": str(error),
                "frame": user_frame(error),
            }
        }
    partial = result_path.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    os.replace(partial, result_path)
    return 0


class _Stages:
    """The stage that runs, for messages, and the time that each took.

    Args:
      started: when the parent began, on the machine's monotonic clock.
    """

    def __init__(self, started: float) -> None:
        self.now = "start"
        self._entered = [("start", started)]

    def enter(self, stage: str) -> None:
        self.now = stage
        self._entered.append((stage, time.monotonic()))

    def seconds(self) -> dict[str, float]:
        """Of loading Python, jax and the workload, of lowering, and of compiling."""
        ends = [*(when for _, when in self._entered[1:]), time.monotonic()]
        seconds = {"load": 0.0, "lower": 0.0, "compile": 0.0}
        for (stage, begin), end in zip(self._entered, ends, strict=True):
            if stage != "record":
                seconds[stage if stage in seconds else "load"] += end - begin
        return seconds


def _compile(request: dict[str, Any], stages: "_Stages") -> dict[str, Any]:
    import jax

    # A compilation taken from the cache would dump nothing.
    jax.config.update("jax_enable_compilation_cache", False)
    from jax._src import source_info_util

    # As in xlapipe.lowering.lower, for the frames of this file.
    source_info_util.register_exclusion(__file__)

    program, topology, devices, config_text = _lowered(request, stages)
    stages.enter("compile")
    options = {**program.options, **request["options"]}
    executable, without_result = _with_results(program, devices, options, request["locked"])
    stages.enter("record")
    if request["executable"] is not None:
        # PJRT's own bytes. jax's serialize_executable wraps them in a pickle, which can run code.
        Path(request["executable"]).write_bytes(executable.serialize())
    memory = executable.get_compiled_memory_stats()
    return {
        "workload": program.workload,
        "arguments": [leaf.to_json() for leaf in program.arguments],
        "outputs": [leaf.to_json() for leaf in _outputs(program, executable)],
        "requested_collectives": [asdict(each) for each in program.requested_collectives],
        "expectations": list(program.expectations),
        "options": {key: str(value) for key, value in program.options.items()},
        "mesh": program.mesh,
        "topology": str(topology) if topology is not None else None,
        "target_config": config_text,
        "memory_analysis": {
            f"{name}_bytes": getattr(memory, f"{name}_size_in_bytes")
            for name in ("argument", "output", "alias", "temp")
        },
        "fusion_without_result": without_result,
        "seconds": stages.seconds(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "jax-cuda13-plugin")},
        "prefixes": {"stdlib": os.path.dirname(os.__file__)},
    }


def _lowered(
    request: dict[str, Any], stages: "_Stages"
) -> tuple["LoweredProgram", "Topology | None", list[Any], str]:
    """The program, lowered here or by who asks; hosts and devices for it; their target config."""
    from xlapipe.lowering.lowered_program import LoweredProgram

    if request["program"] is not None:
        text = Path(request["program"]).read_text(encoding="utf-8")
        program = LoweredProgram.from_json(json.loads(text))
        stages.enter("topology")
        topology = _topology(request, program.workload, program.mesh)
        stages.enter("target")
        return program, topology, *_devices(request, program.workload, topology)
    from xlapipe.lowering.lower import load_workload, lower
    from xlapipe.registry import WorkloadReference
    from xlapipe.targets.topology import Topology

    stages.enter("import")
    asked = Topology.parse(request["topology"]) if request["topology"] is not None else None
    workload = load_workload(
        WorkloadReference.from_json(request["reference"]),
        devices=asked.device_count if asked is not None else None,
    )
    stages.enter("topology")
    topology = _topology(request, workload.name, workload.mesh)
    stages.enter("target")
    devices, config_text = _devices(request, workload.name, topology)
    stages.enter("lower")
    return lower(workload, config_text), topology, devices, config_text


def _topology(
    request: dict[str, Any], name: str, mesh: "Mapping[str, int] | None"
) -> "Topology | None":
    """Hosts and GPUs that the mesh covers; None for a workload without one, on one device."""
    from xlapipe.errors import WorkloadError
    from xlapipe.targets.topology import Topology

    count = prod(mesh.values()) if mesh is not None else 1
    asked = Topology.parse(request["topology"]) if request["topology"] is not None else None
    if asked is not None and asked.device_count != count:
        axes = ", ".join(f"{axis}={size}" for axis, size in (mesh or {}).items())
        of = f"its mesh ({axes}) is of" if mesh is not None else "it has no mesh, and is for"
        raise WorkloadError(
            f"workload {name}: {of} {count} device{'s' if count > 1 else ''}, topology {asked} has "
            f"{asked.device_count}: they must be as many; a function that makes a workload and "
            "takes `devices` is given those of the topology"
        )
    if mesh is None:
        return None
    return asked or Topology.of_devices(count)


def _with_results(
    program: "LoweredProgram", devices: list[Any], options: dict[str, Any], locked: bool
) -> tuple[Any, str | None]:
    """The executable, and the first fusion for which the lock holds no autotune result."""
    if not locked:
        return _executable(program, devices, options), None
    complete = {**options, "xla_gpu_require_complete_aot_autotune_results": True}
    try:
        return _executable(program, devices, complete), None
    except RuntimeError as error:
        found = re.search(r"No cached config found for HLO instr: %(\S+) =", str(error))
        if found is None:
            raise
        # The failed attempt has left the first stages of a dump.
        shutil.rmtree(options["xla_dump_to"], ignore_errors=True)
        return _executable(program, devices, options), found[1]


def _executable(program: "LoweredProgram", devices: list[Any], options: dict[str, Any]) -> Any:
    """Compiles as `jax.stages.Lowered.compile` does, but from a module alone."""
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir, pxla
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(program.stablehlo)
        client = devices[0].client
        compile_options = pxla.create_compile_options(
            module,
            False,
            program.propagate_to_parameters,
            program.propagate_to_outputs,
            client,
            np.array(devices),
            dict(options),
        )
        return compiler.backend_compile_and_load(
            client, module, xla_client.DeviceList(tuple(devices)), compile_options, []
        )


def _outputs(program: "LoweredProgram", executable: Any) -> "tuple[OutputLeaf, ...]":
    """The outputs, which may be sharded as XLA saw fit."""
    if program.device_count == 1 or program.mesh is None:
        return program.outputs
    from xlapipe.lowering.specs import as_compiled

    return as_compiled(program.outputs, program.mesh, executable)


def _devices(
    request: dict[str, Any], name: str, topology: "Topology | None"
) -> tuple[list[Any], str]:
    """Devices to compile for, and the target config that they stand for."""
    import jax

    hosts, gpus = (topology.hosts, topology.gpus) if topology is not None else (1, 1)

    if request["target_config"] is None:
        from jax._src.lib import xla_client

        from xlapipe.errors import WorkloadError

        devices = jax.devices("gpu")
        if hosts > 1 or gpus > len(devices):
            raise WorkloadError(
                f"workload {name}: its mesh asks for {hosts} hosts with {gpus} GPUs; attached are "
                f"{len(devices)} on one"
            )
        config = str(xla_client.get_topology_for_devices(devices).target_config)
        return devices[:gpus], config
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="cuda",
        target_config=request["target_config"],
        topology=f"1x{hosts}x{gpus}",
    )
    return list(described.devices), request["target_config"]


if __name__ == "__main__":
    # Behind everything installed: xlapipe itself, where it runs from a checkout.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main(sys.argv[1]))
