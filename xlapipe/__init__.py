"""Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan against expectations.

`Workload` describes a step; `xlapipe.expect` is the vocabulary of expectations; `fit` and `largest`
choose sizes that fit a device. Importing this package imports no jax.
"""

from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.compiling.sizes import fit, largest
    from xlapipe.workload import Workload

__all__ = ["Workload", "XlapipeError", "fit", "largest"]


def __getattr__(name: str) -> Any:
    # Commands that read a dump start faster without the vocabulary of expectations.
    if name == "Workload":
        from xlapipe.workload import Workload

        return Workload
    if name in ("fit", "largest"):
        from xlapipe.compiling import sizes

        return getattr(sizes, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("xlapipe")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
