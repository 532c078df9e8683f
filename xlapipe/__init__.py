"""Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan against expectations.

`plan` compiles a step and returns XLA's plan, `read` reads one that was dumped; `build` makes an
executable and `load` loads it onto a GPU. `Workload` describes a step, `xlapipe.expect` is the
vocabulary of expectations; `fit` and `largest` choose sizes that fit a device. Importing this
package imports no jax.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.front.compile_step import build, plan
    from xlapipe.front.loaded_step import LoadedStep, load
    from xlapipe.front.read_dump import read
    from xlapipe.front.step_plan import StepPlan
    from xlapipe.sizing.sizes import fit, largest
    from xlapipe.workload import Workload

__all__ = [
    "LoadedStep",
    "StepPlan",
    "Workload",
    "XlapipeError",
    "build",
    "fit",
    "largest",
    "load",
    "plan",
    "read",
]

# Imported when they are used: commands that read a dump start faster without them.
_MODULES = {
    "LoadedStep": "front.loaded_step",
    "StepPlan": "front.step_plan",
    "Workload": "workload",
    "build": "front.compile_step",
    "fit": "sizing.sizes",
    "largest": "sizing.sizes",
    "load": "front.loaded_step",
    "plan": "front.compile_step",
    "read": "front.read_dump",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"xlapipe.{_MODULES[name]}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("xlapipe")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
