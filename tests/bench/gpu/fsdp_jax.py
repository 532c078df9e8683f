"""This repository's training step of `fsdp-mlp`, over all GPUs from one process."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from fsdp_cases import HIDDEN, LAYERS, PROFILED_STEPS, STEPS_PER_SAMPLE, Case, cases
from overlap import Division, Kernel, divide
from timing import timed

from models.fsdp_mlp import training
from models.fsdp_mlp.sizes import MLPSizes
from models.fsdp_mlp.workloads import fsdp_mlp


def compiled(case: Case, options: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """The compiled step, and a first state, x and target for it."""
    sizes = MLPSizes(hidden=HIDDEN, layers=LAYERS, batch=case.batch, devices=case.devices)
    mesh = training.device_mesh(jax.devices("gpu")[: case.devices])
    with jax.set_mesh(mesh):
        state = training.initial_state(sizes, 0, mesh)
        x, target = training.random_batch(sizes, 1, mesh)
        step = jax.jit(
            training.training_step(sizes),
            donate_argnums=0,
            out_shardings=training.shardings(mesh, training.OUT_SPECS),
        )
        return step.lower(state, x, target).compile(compiler_options=options), state, x, target


def measured(case: Case, variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """One timing, with the division of the first device's time."""
    step, state, x, target = compiled(case, options)

    def call(number: int) -> jax.Array:
        nonlocal state
        state, loss = step(state, x, target)
        return loss

    timing = timed(case.name, variant, call, jax.block_until_ready, calls=STEPS_PER_SAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for number in range(PROFILED_STEPS):
                loss = call(number)
            jax.block_until_ready(loss)
        division = profiled(Path(folder), PROFILED_STEPS)
    return asdict(timing) | {"division": division and asdict(division)}


def profiled(folder: Path, steps: int) -> Division | None:
    """The division of the first device's time in a profile."""
    (file,) = folder.rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(file))
    planes = sorted(
        (plane for plane in data.planes if plane.name.startswith("/device:GPU:")),
        key=lambda plane: plane.name,
    )
    if not planes:
        return None
    kernels = [
        Kernel(event.name, event.start_ns * 1e-9, (event.start_ns + event.duration_ns) * 1e-9)
        for line in planes[0].lines
        if line.name.startswith("Stream")
        for event in line.events
    ]
    return divide(kernels, steps)


def main() -> None:
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    timings = [
        measured(case, "xlapipe fsdp-mlp", dict(fsdp_mlp(devices=case.devices).options))
        for case in cases(len(jax.devices("gpu")))
    ]
    device = jax.devices("gpu")[0].device_kind
    print(json.dumps({"framework": f"jax {jax.__version__}", "device": device, "timings": timings}))


if __name__ == "__main__":
    main()
