"""A step as a Workload."""

import importlib

from xlapipe import Workload


def of(module: str, step: str) -> Workload:
    made = getattr(importlib.import_module(f"tests.public.steps.{module}"), step)()
    return Workload(
        name=step,
        fn=made.fn,
        args=made.args,
        donate_argnums=made.donate_argnums,
        mesh=made.mesh,
        in_specs=made.in_specs,
    )
