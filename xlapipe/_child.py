"""The compiling child: `python _child.py REQUEST.json`. Never imported.

It reads a request, lowers and compiles, lets XLA write its dump, and writes RESULT.json. Bad
input comes back as an error in the result; a crash leaves no result, and the parent says so.
"""

import json
import os
import re
import shutil
import sys
import traceback
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(request_path: str) -> int:
    """Returns 0 if a result was written, be it an error."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    result_path = Path(request["result"])
    stage = ["start"]
    try:
        result = _compile(request, stage)
    except Exception as error:  # noqa: BLE001 - the user's code and XLA may raise anything
        traceback.print_exc()
        from xlapipe.errors import XlapipeError
        from xlapipe.lower import user_frame

        result = {
            "error": {
                "stage": stage[0],
                "type": "" if isinstance(error, XlapipeError) else type(error).__name__,
                "message": str(error),
                "frame": user_frame(error),
            }
        }
    partial = result_path.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    os.replace(partial, result_path)
    return 0


def _compile(request: dict[str, Any], stage: list[str]) -> dict[str, Any]:
    import jax

    # A compilation taken from the cache would dump nothing.
    jax.config.update("jax_enable_compilation_cache", False)
    from jax._src import source_info_util

    from xlapipe import lower as lowering
    from xlapipe.expect import expectation_to_json
    from xlapipe.lower import load_workload, lower

    # Frames of xlapipe's own in HLO would change every dump with each line that is added here.
    for file in (__file__, lowering.__file__):
        source_info_util.register_exclusion(file)

    stage[0] = "import"
    workload = load_workload(request["reference"], folder=request["folder"])
    stage[0] = "target"
    devices, config_text = _devices(request, workload.device_count)
    stage[0] = "lower"
    program = lower(workload, devices)
    stage[0] = "compile"
    options = {**workload.options, **request["options"]}
    compiled, without_result = _with_results(program.lowered, options, request["locked"])
    stage[0] = "record"
    if request["executable"] is not None:
        # PJRT's own bytes. jax's serialize_executable wraps them in a pickle, which can run code.
        content = compiled.runtime_executable().serialize()
        Path(request["executable"]).write_bytes(content)
    memory = compiled.memory_analysis()
    return {
        "workload": workload.name,
        "arguments": [asdict(leaf) for leaf in program.arguments],
        "outputs": [asdict(leaf) for leaf in program.outputs],
        "expectations": [expectation_to_json(item) for item in workload.expectations],
        "options": {key: str(value) for key, value in workload.options.items()},
        "mesh": dict(workload.mesh) if workload.mesh is not None else None,
        "target_config": config_text,
        "memory_analysis": {
            f"{name}_bytes": getattr(memory, f"{name}_size_in_bytes")
            for name in ("argument", "output", "alias", "temp")
        },
        "fusion_without_result": without_result,
        "versions": {name: version(name) for name in ("jax", "jaxlib", "jax-cuda13-plugin")},
        "prefixes": {"stdlib": os.path.dirname(os.__file__)},
    }


def _with_results(lowered: Any, options: dict[str, Any], locked: bool) -> tuple[Any, str | None]:
    """The executable, and the first fusion for which the lock holds no autotune result."""
    if not locked:
        return lowered.compile(compiler_options=options), None
    complete = {**options, "xla_gpu_require_complete_aot_autotune_results": True}
    try:
        return lowered.compile(compiler_options=complete), None
    except RuntimeError as error:
        found = re.search(r"No cached config found for HLO instr: %(\S+) =", str(error))
        if found is None:
            raise
        # The failed attempt has left the first stages of a dump.
        shutil.rmtree(options["xla_dump_to"], ignore_errors=True)
        return lowered.compile(compiler_options=options), found[1]


def _devices(request: dict[str, Any], count: int) -> tuple[list[Any], str]:
    """Devices to compile for, and the target config that they stand for."""
    import jax

    if request["target_config"] is None:
        from jax._src.lib import xla_client

        devices = jax.devices("gpu")
        return devices, str(xla_client.get_topology_for_devices(devices).target_config)
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda",
        target_config=request["target_config"],
        topology=f"1x1x{count}",
    )
    return list(topology.devices), request["target_config"]


if __name__ == "__main__":
    # Behind everything installed: xlapipe itself, where it runs from a checkout.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    sys.exit(main(sys.argv[1]))
