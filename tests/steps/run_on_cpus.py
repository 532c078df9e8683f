"""`xlapipe` on CPU devices: instead of loading an executable, compiles its workload here.

    python run_on_cpus.py ARGUMENTS-OF-XLAPIPE…

An executable for a GPU cannot be loaded here; everything else is as on GPUs. The workload is
`small_sharded:sharded`, over the devices of the manifest's mesh.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parent))
from small_sharded import sharded

from xlapipe.cli import main
from xlapipe.compile.lowering.leaves import mesh_over, named
from xlapipe.dump.manifest import Manifest
from xlapipe.run import run
from xlapipe.run.built_executable import built_manifest
from xlapipe.run.check_devices import first_of
from xlapipe.run.executable import LoadedExecutable

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")


def select_cpus(path: Path, manifest: Manifest, hosts: int = 1) -> tuple[Any, ...]:
    return first_of(path, manifest, jax.devices(), jax.process_count())


def compile_for_cpus(path: Path, devices: Sequence[Any]) -> LoadedExecutable:
    manifest = built_manifest(path)
    workload = sharded(len(devices))
    mesh = mesh_over(workload.mesh or {}, devices)
    arguments = [
        jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=named(mesh, leaf.spec or ()))
        for argument, leaf in zip(workload.args, manifest.arguments, strict=True)
    ]
    with jax.set_mesh(mesh):
        compiled = jax.jit(workload.fn, donate_argnums=0).lower(*arguments).compile()
    return LoadedExecutable(path, manifest, tuple(devices), compiled.runtime_executable())


if __name__ == "__main__":
    run.select_devices = select_cpus
    run.load_executable = compile_for_cpus
    sys.exit(main(sys.argv[1:]))
