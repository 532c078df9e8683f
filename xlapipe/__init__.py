"""Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan against expectations.

Programs and notebooks use the names below, and `xlapipe.expect`, the vocabulary of expectations;
everything else may change without notice. Importing this package imports no jax.

    plan = xlapipe.plan(step, *args, donate="cache", target="h200")  # compiles a step
    plan = xlapipe.read("hlo_dumps/step/h200-auto-jax0.12.0.1")  # reads a plan that was dumped
    xlapipe.diff(plan, "hlo_dumps/step/h200-auto-jax0.12.0.1")       # what another plan costs
    xlapipe.build(workload, out="built")                             # makes an executable
    outputs = xlapipe.load("built")(*args)                           # runs it on the GPU
    xlapipe.largest("step:workload", "batch", target="h200")         # chooses a size that fits
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.api.choose_rows import choose
    from xlapipe.api.compare_plans import diff
    from xlapipe.api.compile_step import build, plan
    from xlapipe.api.graphs_plan import GraphsPlan
    from xlapipe.api.loaded_step import LoadedStep, load
    from xlapipe.api.plan_arguments import target
    from xlapipe.api.step_plan import StepPlan, read
    from xlapipe.devices.targets.target import Target
    from xlapipe.dump.autotune_lock import read_lock
    from xlapipe.registry import WorkloadReference
    from xlapipe.search.sizing.sizes import fit, largest
    from xlapipe.workload import Workload

__all__ = [
    "GraphsPlan",
    "LoadedStep",
    "StepPlan",
    "Target",
    "Workload",
    "WorkloadReference",
    "XlapipeError",
    "build",
    "choose",
    "diff",
    "fit",
    "largest",
    "load",
    "plan",
    "read",
    "read_lock",
    "target",
]

# Imported when they are used: commands that read a dump start faster without them.
_MODULES = {
    "GraphsPlan": "api.graphs_plan",
    "LoadedStep": "api.loaded_step",
    "StepPlan": "api.step_plan",
    "Target": "devices.targets.target",
    "Workload": "workload",
    "WorkloadReference": "registry",
    "build": "api.compile_step",
    "choose": "api.choose_rows",
    "diff": "api.compare_plans",
    "fit": "search.sizing.sizes",
    "largest": "search.sizing.sizes",
    "load": "api.loaded_step",
    "plan": "api.compile_step",
    "read": "api.step_plan",
    "read_lock": "dump.autotune_lock",
    "target": "api.plan_arguments",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__", "expect"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"xlapipe.{_MODULES[name]}"), name)
    if name == "expect":
        return import_module("xlapipe.expect")
    if name == "__version__":
        from importlib.metadata import version

        return version("xlapipe")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
