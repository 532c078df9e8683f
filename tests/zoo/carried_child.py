"""Compiles the cases of `carried.py`: `python carried_child.py {jax|xlapipe} CONFIG FOLDER`.

Writes FOLDER/totals.json: for each case the totals in bytes, or the error. With `jax`, nothing of
xlapipe is imported.
"""

import json
import re
import sys
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from carried import CARRIED, Case, Step, in_force
from flax import nnx
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

# Optimisation of the kernels comes after buffer assignment and changes no plan.
_OPTIONS = {"xla_backend_optimization_level": 0}
_SIZES = ("argument", "output", "alias", "temp")
_KINDS = (*_SIZES, *(f"host_{size}" for size in _SIZES))


_OPCODE = re.compile(r"^ +(?:ROOT )?%\S+ = .*?[\]})] ([a-z][\w-]*)\(", re.MULTILINE)


def _opcodes(dump: Path) -> dict[str, int]:
    """Number of optimised instructions by opcode, since settings may change no total."""
    (path,) = dump.glob("*after_optimizations.txt")
    return dict(sorted(Counter(_OPCODE.findall(path.read_text())).items()))


def _dumping(dump: Path) -> dict[str, Any]:
    """Options of XLA for one case."""
    return {**_OPTIONS, "xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}


def by_jax(case: Case, config: str, folder: Path) -> dict[str, Any]:
    """Totals, and opcodes, of a compile by jax alone."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{case.device_count}"
    )
    devices = list(topology.devices)
    with in_force(case.context(devices), case.alone(devices)):
        step = case.step(devices)
        fn, args = step.alone or (step.fn, step.args)
        if case.device_count == 1:
            place = SingleDeviceSharding(devices[0])
            args = tuple(_placed(arg, place) for arg in args)
        memory = fn.lower(*args).compile(_dumping(folder)).memory_analysis()
    totals = {kind: getattr(memory, f"{kind}_size_in_bytes") for kind in _KINDS}
    return {**totals, "opcodes": _opcodes(folder)}


def _placed(arg: Any, place: SingleDeviceSharding) -> Any:
    """An argument with its abstract leaves on a device; objects of nnx stay shared."""

    def leaf_at(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct) or leaf.sharding is not None:
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    if isinstance(arg, nnx.Pytree):
        graph, state = nnx.split(arg)
        return nnx.merge(graph, jax.tree.map(leaf_at, state))
    return jax.tree.map(leaf_at, arg)


def by_xlapipe(case: Case, config: str, folder: Path) -> dict[str, Any]:
    """Totals, and opcodes, of a compile by xlapipe."""
    from xlapipe import Workload
    from xlapipe.compile.child import main
    from xlapipe.compile.job import Job
    from xlapipe.compile.lowering.lower import lower
    from xlapipe.devices.targets.catalogue import target_named
    from xlapipe.devices.targets.topology import Topology
    from xlapipe.registry import WorkloadReference

    devices = jax.devices()[: case.device_count]
    with in_force(case.context(devices)):
        step: Step = case.step(devices)
        workload = Workload(name="step", fn=step.fn, args=step.args, **step.fields)
        program = lower(workload, config)
    folder.mkdir()
    job = Job(
        reference=WorkloadReference("step", "step:step"),
        target=replace(target_named("h200"), config_text=config),
        program=program,
        topology=Topology(1, case.device_count) if case.device_count > 1 else None,
        options=_OPTIONS,
        scratch=folder,
    )
    (folder / "job.json").write_bytes(job.to_bytes())
    main(folder / "job.json")
    result = json.loads((folder / "result.json").read_text())
    if "error" in result:
        raise RuntimeError(result["error"]["message"])
    totals = {kind: result["memory_analysis"].get(f"{kind}_bytes", 0) for kind in _KINDS}
    return {**totals, "opcodes": _opcodes(folder / "dump")}


def compile_all(who: str, config_path: Path, folder: Path) -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    config = config_path.read_text()
    totals: dict[str, Any] = {}
    for case in CARRIED:
        try:
            compiled = (
                by_jax(case, config, folder / f"{case.name}-alone")
                if who == "jax"
                else by_xlapipe(case, config, folder / case.name)
            )
            totals[case.name] = compiled
        except Exception as error:  # noqa: BLE001 - the test reports it
            traceback.print_exc()
            totals[case.name] = f"{type(error).__name__}: {error}"[:500]
    (folder / "totals.json").write_text(json.dumps(totals))


if __name__ == "__main__":
    compile_all(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
