"""Refuses Pallas kernels for GPUs in a program for a TPU, with the line that calls them."""

from typing import Any

from xlapipe.compile.lowering.pallas_calls import pallas_calls
from xlapipe.compile.lowering.user_frame import equation_line
from xlapipe.errors import WorkloadError

# Parts of the modules that define the compiler parameters of kernels for GPUs.
_GPU_MODULES = ("triton", "mosaic_gpu")


def refuse_gpu_kernels(closed_jaxpr: Any) -> None:
    """Refuses a traced program that calls a kernel with a GPU's compiler parameters.

    jax's own error names neither the kernel nor the line.

    Raises:
      WorkloadError: the program has such a kernel.
    """
    for equation in pallas_calls(closed_jaxpr.jaxpr):
        parameters = equation.params.get("compiler_params")
        module = type(parameters).__module__
        if not any(part in module for part in _GPU_MODULES):
            continue
        raise WorkloadError(
            f"the step calls a Pallas kernel for GPUs{equation_line(equation)}, and the target is "
            f"a TPU: its compiler_params are of {module.rpartition('.')[0] or module}; fix: call "
            "another implementation on TPUs, e.g. with jax.lax.platform_dependent, or compile for "
            "a GPU"
        )
