"""The Python front: `xlapipe.plan`, `read`, `build` and `load`.

- `step_plan`: what `plan` and `read` return: a plan with the questions that people ask about it;
- `compile_step`: `plan` and `build`, which compile a step of this process or a registered one;
- `read_dump`: `read`;
- `loaded_step`: `load`, an executable on the attached GPU;
- `plan_arguments`, `answer`: shared with the pytest fixture.

Programs that use xlapipe need nothing below this package; the repository's models show it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlapipe.front.compile_step import build, plan
    from xlapipe.front.loaded_step import LoadedStep, load
    from xlapipe.front.read_dump import read
    from xlapipe.front.step_plan import StepPlan

__all__ = ["LoadedStep", "StepPlan", "build", "load", "plan", "read"]

_MODULES = {
    "LoadedStep": "loaded_step",
    "StepPlan": "step_plan",
    "build": "compile_step",
    "load": "loaded_step",
    "plan": "compile_step",
    "read": "read_dump",
}


def __getattr__(name: str) -> Any:
    # Each name imports only what it needs: `load` starts in a fraction of the time of `plan`.
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"xlapipe.front.{_MODULES[name]}"), name)
