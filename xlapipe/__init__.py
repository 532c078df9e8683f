"""Compile a JAX step for an NVIDIA GPU on any machine, and hold XLA's plan against what was meant.

`Workload` describes a step; `xlapipe.expect` is the vocabulary of expectations. Importing this
package imports no jax.
"""

from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.workload import Workload

__all__ = ["Workload", "XlapipeError"]


def __getattr__(name: str) -> Any:
    # Commands that read a dump start faster without the vocabulary of expectations.
    if name == "Workload":
        from xlapipe.workload import Workload

        return Workload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
