"""A step as a Workload."""

import importlib

import jax
from jax.sharding import Mesh

from tests.public.step import made_for
from xlapipe import Workload


def of(module: str, step: str) -> Workload:
    imported = importlib.import_module(f"tests.public.steps.{module}")
    made = made_for(imported, step, jax.devices)
    if isinstance(made.mesh, Mesh):
        jax.set_mesh(made.mesh)
        return Workload(name=step, fn=made.fn, args=made.args)
    return Workload(
        name=step,
        fn=made.fn,
        args=made.args,
        donate_argnums=made.donate_argnums,
        mesh=made.mesh,
        in_specs=made.in_specs,
    )
