"""Objects of Flax's nnx, which are one variable or module wherever a tree has them.

`nnx.jit` passes tied weights once because it finds one `nnx.Variable` in two places. jax's
functions on trees would make two of it.
"""

import sys
from typing import Any


def is_shared_object(node: Any) -> bool:
    """Whether a node of a tree is a variable, module, optimizer or another object of Flax's nnx."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, (nnx.Variable, nnx.Pytree))
