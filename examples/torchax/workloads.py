"""Workloads from torch modules: `torchax.extract_jax` gives a function of JAX and its arrays.

    pip install torch torchax torchvision
    xlapipe dump examples.torchax.workloads:mlp --gemm cublas --out build/torchax
    xlapipe diff TRACE_FOLDER build/torchax/torchax-mlp/h200-cublas-jax0.10.2

The step computes the result and, with `jax.vjp`, the gradients, as torch's forward and backward
graph do. Tried with torch 2.13.0, torchvision 0.28.0, torchax 0.0.13 and jax 0.10.2.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from examples.torchax.newer_torch import import_torchax
from examples.torchax.programs import MLP, Block
from xlapipe import Workload

torchax = import_torchax()


def mlp() -> Workload:
    """Three linear layers in bfloat16, x [256, 1024]."""
    return _workload("torchax-mlp", MLP().to(torch.bfloat16), (256, 1024), jnp.bfloat16)


def block() -> Workload:
    """Two transformer blocks in bfloat16, x [4, 256, 512]."""
    blocks = torch.nn.Sequential(Block(), Block()).to(torch.bfloat16)
    return _workload("torchax-block", blocks, (4, 256, 512), jnp.bfloat16, gradient_of_x=True)


def resnet18() -> Workload:
    """torchvision's ResNet-18 for 100 classes in float32, x [8, 3, 224, 224]."""
    from torchvision.models import resnet18 as model

    return _workload("torchax-resnet18", model(num_classes=100), (8, 3, 224, 224), jnp.float32)


def _workload(
    name: str,
    module: torch.nn.Module,
    shape: tuple[int, ...],
    dtype: Any,
    *,
    gradient_of_x: bool = False,
) -> Workload:
    arrays, function = torchax.extract_jax(module)
    state = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), arrays)
    trained = {key for key, _ in module.named_parameters()}
    parameters = {key: value for key, value in state.items() if key in trained}
    buffers = {key: value for key, value in state.items() if key not in trained}
    x = jax.ShapeDtypeStruct(shape, dtype)
    y = jax.eval_shape(lambda state, x: function(state, (x,)), state, x)
    return Workload(name=name, fn=_step(function, gradient_of_x), args=(parameters, buffers, x, y))


def _step(function: Callable[..., Any], gradient_of_x: bool) -> Callable[..., Any]:
    def step(parameters: dict[str, Any], buffers: dict[str, Any], x: Any, g: Any) -> Any:
        """Computes y and, from its gradient g, the gradients."""

        def forward(parameters: dict[str, Any], rows: Any = x) -> Any:
            return function({**buffers, **parameters}, (rows,))

        wanted = (parameters, x) if gradient_of_x else (parameters,)
        y, pull_back = jax.vjp(forward, *wanted)
        # In training, g depends on y: the barrier keeps XLA from using g earlier.
        g, _ = jax.lax.optimization_barrier((g, y))
        return y, pull_back(g)

    return step
