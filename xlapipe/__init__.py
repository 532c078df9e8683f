"""Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan against expectations.

Programs and notebooks use the names below, and `xlapipe.expect`, the vocabulary of expectations;
everything else may change without notice. Importing this package imports no jax.

    plan = xlapipe.plan(step, *args, donate="cache", target="h200")  # compiles a step
    plan = xlapipe.read("hlo_dumps/step/h200-auto-jax0.11.2")        # reads a plan that was dumped
    xlapipe.build(workload, out="built")                             # makes an executable
    outputs = xlapipe.load("built")(*args)                           # runs it on the GPU
    xlapipe.largest("step:workload", "batch", target="h200")         # chooses a size that fits
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.dumps.autotune_lock import read_lock
    from xlapipe.front.choose_rows import choose
    from xlapipe.front.compile_step import build, plan
    from xlapipe.front.find_target import target
    from xlapipe.front.graphs_plan import GraphsPlan
    from xlapipe.front.loaded_step import LoadedStep, load
    from xlapipe.front.read_dump import read
    from xlapipe.front.step_plan import StepPlan
    from xlapipe.registry import WorkloadReference
    from xlapipe.running.cuda_context import start_cuda_context
    from xlapipe.sizing.sizes import fit, largest
    from xlapipe.targets.target import Target
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
    "fit",
    "largest",
    "load",
    "plan",
    "read",
    "read_lock",
    "start_cuda_context",
    "target",
]

# Imported when they are used: commands that read a dump start faster without them.
_MODULES = {
    "GraphsPlan": "front.graphs_plan",
    "LoadedStep": "front.loaded_step",
    "StepPlan": "front.step_plan",
    "Target": "targets.target",
    "Workload": "workload",
    "WorkloadReference": "registry",
    "build": "front.compile_step",
    "choose": "front.choose_rows",
    "fit": "sizing.sizes",
    "largest": "sizing.sizes",
    "load": "front.loaded_step",
    "plan": "front.compile_step",
    "read": "front.read_dump",
    "read_lock": "dumps.autotune_lock",
    "start_cuda_context": "running.cuda_context",
    "target": "front.find_target",
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
