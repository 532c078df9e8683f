"""Compiles the probes of a calibration for an H200, without a GPU.

    python tests/run/compile_probes.py FOLDER [REGEX]

Writes FOLDER/NAME/, the files of XLA that a prediction reads, and prints the probes that fail. With
products by Triton, as without a device's tuner; half of the probes of products by cuBLAS.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # as of each compile without a GPU
import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from xlapipe import Workload
from xlapipe.compile.lowering.kernel_codes import kernel_codes
from xlapipe.compile.lowering.meshes import context_mesh
from xlapipe.compile.lowering.target_devices import TargetClient, target_in_place_of_cpu
from xlapipe.devices.platforms import NVIDIA
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.run.calibration.probes import probes
from xlapipe.run.calibration.profiles import KEPT_FILES, write_kernel_codes
from xlapipe.run.calibration.timed_program import TimedProgram


def compile_probe(
    program: TimedProgram, client: TargetClient, sharding: Any, folder: Path, options: Any
) -> None:
    structs = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        program.structs(),
    )
    results = {} if structs else {"out_shardings": sharding}
    device = context_mesh(Workload(name="probe", fn=program.fn, args=()), client.figures)
    # Pallas and cuDNN's attention ask for the device.
    with target_in_place_of_cpu(client), jax.sharding.use_abstract_mesh(device):
        traced = jax.jit(program.fn, **results).trace(*structs)
        lowered = traced.lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as scratch:
        given = {
            "xla_dump_to": scratch,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": False,
            "xla_backend_optimization_level": 0,
            **options,
            **program.options,
        }
        lowered.compile(compiler_options=given)
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(scratch).iterdir():
            if KEPT_FILES.search(path.name):
                (folder / path.name).write_bytes(path.read_bytes())
    if codes := kernel_codes(traced.jaxpr):
        write_kernel_codes(folder, codes)


def main(out: str, pattern: str = "") -> None:
    config_text = target_named("h200").config_text
    client = TargetClient(NVIDIA.device_figures(config_text), 1, 1)
    arguments = NVIDIA.topology_arguments(config_text, None)
    devices = topologies.get_topology_desc(platform=NVIDIA.name, **arguments).devices
    sharding = SingleDeviceSharding(devices[0])
    for name, program in probes().items():
        if re.search(pattern, name):
            of_cublas = name.startswith("products/") and name[-1] in "02468"
            options = {"xla_gpu_enable_triton_gemm": False} if of_cublas else {}
            try:
                compile_probe(program, client, sharding, Path(out) / name, options)
            except Exception as error:  # noqa: BLE001  # the others are compiled nevertheless
                print(f"{name}: {error!s:.200}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
