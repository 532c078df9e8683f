"""The pytest plugin and its parts; the fixture `xlapipe_plan` is a `PlansOfTest`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlapipe.api.answer import Answer
    from xlapipe.api.testing.plan import PlanUnderTest
    from xlapipe.api.testing.session import PlansOfTest

__all__ = ["Answer", "PlanUnderTest", "PlansOfTest"]

_MODULES = {"Answer": "answer", "PlanUnderTest": "plan", "PlansOfTest": "session"}


def __getattr__(name: str) -> Any:
    # pytest imports this package to load the plugin, also in runs that do not use it.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
