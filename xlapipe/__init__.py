"""Compile a JAX step for an NVIDIA GPU on any machine, and hold XLA's plan against what was meant.

`Workload` describes a step; `xlapipe.expect` is the vocabulary of expectations. Importing this
package imports no jax.
"""

from xlapipe.errors import XlapipeError
from xlapipe.workload import Workload

__all__ = ["Workload", "XlapipeError"]
