"""`xlapipe run` over CPU devices: the same workload, compiled in this process in place of loading.

    python run_on_cpus.py ARGUMENTS-OF-XLAPIPE…

An executable for a GPU cannot be loaded here; everything else is as on GPUs. The workload is
`small_sharded:sharded`, over as many devices as the manifest's mesh has.
"""

import os
import sys
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parent))
from small_sharded import sharded

from xlapipe.cli import main
from xlapipe.dumps.manifest import Manifest
from xlapipe.errors import TargetError
from xlapipe.lowering.specs import mesh_over, named
from xlapipe.running import run
from xlapipe.running.executable import LoadedExecutable, built_manifest
from xlapipe.running.select_devices import _enough

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")


def devices(path: Path, manifest: Manifest, hosts: int) -> tuple[Any, ...]:
    mode = os.environ.get(f"TEST_PROCESS_{jax.process_index()}", "")
    if mode == "raises":
        raise TargetError(f"process {jax.process_index()} found no GPU")
    if mode == "dies":
        os._exit(7)
    if mode == "hangs":
        time.sleep(600)
    return _enough(path, manifest, prod((manifest.mesh or {}).values()), jax.devices())


def compiled(path: Path, devices: Sequence[Any]) -> LoadedExecutable:
    manifest = built_manifest(path)
    workload = sharded(len(devices))
    mesh = mesh_over(workload.mesh or {}, devices)
    arguments = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=named(mesh, leaf.spec or ()))
        for each, leaf in zip(workload.args, manifest.arguments, strict=True)
    ]
    with jax.set_mesh(mesh):
        found = jax.jit(workload.fn, donate_argnums=0).lower(*arguments).compile()
    executable = found.runtime_executable()
    mode = os.environ.get(f"TEST_PROCESS_{jax.process_index()}", "")
    if mode == "fails":
        executable = Failing()
    if mode == "sticks":
        executable = Sticking()
    return LoadedExecutable(path, manifest, tuple(devices), executable)


class Failing:
    """As NCCL does where the interface it is told to use is not there."""

    def execute_sharded(self, arguments: Any) -> Any:
        raise RuntimeError("NCCL operation ncclCommInitRankConfig failed: unhandled system error")


class Sticking:
    """A first call that never ends."""

    def execute_sharded(self, arguments: Any) -> Any:
        time.sleep(600)


run.devices_for = devices
run.load_executable = compiled
sys.exit(main(sys.argv[1:]))
