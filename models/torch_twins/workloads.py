"""The workloads: one training step each, at the sizes of torch's compiled graphs.

Building a workload allocates no arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp

from models.torch_twins import expectations
from models.torch_twins.mlp import mlp_step
from models.torch_twins.resnet import Affine, Classifier, Statistics, resnet_step
from models.torch_twins.sizes import CLASSES, IMAGE, STAGES, kernel_shapes
from models.torch_twins.transformer import Block, LayerNorm, Linear, transformer_step
from xlapipe import Workload


def torch_mlp(batch: int = 256, width: int = 1024) -> Workload:
    """Three linear layers with ReLU in bfloat16."""
    weight, rows = _bfloat16(width, width), _bfloat16(batch, width)
    return Workload(
        name="torch-mlp",
        fn=mlp_step,
        args=(weight, rows, weight, weight, rows),
        expectations=expectations.mlp(batch, width),
    )


def torch_block(
    batch: int = 4, length: int = 256, width: int = 512, hidden: int = 2048
) -> Workload:
    """Two transformer blocks in bfloat16; the gradient of x is computed too."""
    rows, vector = _bfloat16(batch, length, width), _bfloat16(width)
    block = Block(
        attention_norm=vector,
        qkv=_linear(3 * width, width),
        out=_linear(width, width),
        mlp_norm=LayerNorm(vector, vector),
        up=_linear(hidden, width),
        down=_linear(width, hidden),
    )
    return Workload(
        name="torch-block",
        fn=transformer_step,
        args=(rows, block, block, rows),
        expectations=expectations.transformer(batch * length, width, hidden),
    )


def torch_resnet18() -> Workload:
    """ResNet-18 for 100 classes in float32; running statistics are donated, as torch updates them
    in place."""
    stem, *kernels = (_float32(*shape) for shape in kernel_shapes())
    norms = [_norm(shape[0]) for shape in kernel_shapes()]
    layers = [(kernel, *norm) for kernel, norm in zip(kernels, norms[1:], strict=True)]
    classifier = Classifier(_float32(CLASSES, STAGES[-1]), _float32(CLASSES))
    g = _float32(IMAGE[0], CLASSES)
    rest = [*norms[0], *(part for layer in layers for part in layer), classifier, g]
    args = (stem, _float32(*IMAGE), *rest)
    return Workload(
        name="torch-resnet18",
        fn=resnet_step,
        args=args,
        donate_argnums=[at for at, part in enumerate(args) if isinstance(part, Statistics)],
        expectations=expectations.resnet(),
    )


def _norm(channels: int) -> tuple[Statistics, Affine]:
    vector = _float32(channels)
    batches: Any = jax.ShapeDtypeStruct((), jnp.int32)
    return Statistics(batches, vector, vector), Affine(vector, vector)


def _linear(out: int, inputs: int) -> Linear:
    return Linear(_bfloat16(out, inputs), _bfloat16(out))


def _bfloat16(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _float32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
